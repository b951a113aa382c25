"""Steps of a resharding path as JAX collectives on local tiles, inside `shard_map`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from meshwise.graph.layout import SUM, Layout
from meshwise.resharding.within import ReshardingStep
from meshwise.spmd.shards import rank_along
from meshwise.trace.block import take_block


def apply_step(
    value: Array,
    before: Layout,
    step: ReshardingStep,
    sizes: Sequence[int],
    names: Sequence[str],
) -> Array:
    """Run one step on the local tile.

    Args:
        value: Local tile in layout `before`.
        before: Layout before the step.
        step: The step.
        sizes: Sizes of the mesh axes.
        names: Names of the mesh axes.

    Returns:
        The local tile in `step.layout`.
    """
    if 0 in value.shape:
        return jnp.zeros(_shape_after(value.shape, before, step.layout, sizes), value.dtype)
    group = tuple(names[a] for a in step.axes)
    match step.kind:
        case "slice":
            (axis,) = step.axes
            size = value.shape[step.dim] // sizes[axis]
            start = rank_along(step.axes, sizes, names) * size
            return take_block(value, start, size, step.dim)
        case "mask":
            first = rank_along(step.axes, sizes, names) == 0
            return jnp.where(first, value, jnp.zeros_like(value))
        case "all-gather":
            return lax.all_gather(value, group, axis=step.dim, tiled=True)
        case "reduce-scatter":
            return lax.psum_scatter(value, group, scatter_dimension=step.dim, tiled=True)
        case "all-reduce":
            return _all_reduce(value, group, step.monoid)
        case "all-to-all":
            return lax.all_to_all(
                value, group, split_axis=step.to_dim, concat_axis=step.dim, tiled=True
            )
        case "permute":
            # Ranks of a group of several axes are counted in mesh order.
            group = sorted(before.dims[step.dim])
            pairs = _reorder_pairs(before, step, sizes)
            return lax.ppermute(value, tuple(names[a] for a in group), pairs)
        case _:
            raise ValueError(f"unknown step {step.kind!r}")


def _shape_after(
    local: Sequence[int], before: Layout, after: Layout, sizes: Sequence[int]
) -> tuple[int, ...]:
    """Local shape after a step; collectives refuse tiles without elements."""
    return tuple(
        size * math.prod(sizes[a] for a in old) // math.prod(sizes[a] for a in new)
        for size, old, new in zip(local, before.dims, after.dims, strict=True)
    )


def _all_reduce(value: Array, group: tuple[str, ...], monoid: str) -> Array:
    if monoid == SUM:
        return lax.psum(value, group)
    if monoid in ("and", "or"):
        bits = value.astype(jnp.uint8)
        both = lax.pmin(bits, group) if monoid == "and" else lax.pmax(bits, group)
        return both.astype(value.dtype)
    reduce = lax.pmax if monoid == "max" else lax.pmin
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return reduce(value, group)
    ordered = _in_order(value)
    beyond = jnp.iinfo(ordered.dtype).max if monoid == "max" else jnp.iinfo(ordered.dtype).min
    found = reduce(jnp.where(jnp.isnan(value), ordered.dtype.type(beyond), ordered), group)
    return lax.bitcast_convert_type(_negatives_turned(found), value.dtype)


def _in_order(value: Array) -> Array:
    """Floats as integers of the same width and order.

    An all-reduce of floats to their maximum or minimum forgets a NaN that is not on the first
    device, which the reduction of one device does not (XLA:CPU, JAX 0.10.2, by experiment).
    """
    width = value.dtype.itemsize * 8
    return _negatives_turned(lax.bitcast_convert_type(value, jnp.dtype(f"int{width}")))


def _negatives_turned(bits: Array) -> Array:
    """Its own inverse: the larger the magnitude of a negative float, the smaller the integer."""
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def _reorder_pairs(
    before: Layout, step: ReshardingStep, sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """(source, destination) ranks, in mesh order, for a new order of the axes on a dim."""
    old, new = before.dims[step.dim], step.layout.dims[step.dim]
    group = sorted(old)

    def block(place: dict[int, int], order: tuple[int, ...]) -> int:
        index = 0
        for axis in order:
            if axis in place:
                index = index * sizes[axis] + place[axis]
        return index

    places = [
        dict(zip(group, place, strict=True))
        for place in itertools.product(*(range(sizes[a]) for a in group))
    ]
    owner = {block(place, old): rank for rank, place in enumerate(places)}
    return [(owner[block(place, new)], rank) for rank, place in enumerate(places)]
