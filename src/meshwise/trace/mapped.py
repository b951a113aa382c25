"""An inner `shard_map` as `vmap`s over the axes of its mesh.

Its blocks become dims of whole arrays, one for each axis that an operand names, and each collective
becomes what `vmap` makes of it: `psum` a sum over a dim, `ppermute` a permutation of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from meshwise.jax_compat.contexts import is_mapped

Body = Callable[..., list[Array]]


def mapped(params: Mapping[str, Any], operands: Sequence[Array], body: Body) -> list[Array]:
    """Run a `shard_map` on whole arrays.

    Args:
        params: Its parameters.
        operands: Its operands.
        body: What runs on the blocks of one device.

    Returns:
        Its results.
    """
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    sizes = {axis: mesh.shape[axis] for axis in mesh.axis_names if axis in manual}
    blocks = [_blocks(x, s, sizes) for x, s in zip(operands, params["in_specs"], strict=True)]
    taken, given = ([set(_axes(s)) for s in params[key]] for key in ("in_specs", "out_specs"))
    results = _over(list(sizes.items()), body, taken, given, blocks)
    return [_joined(x, s, sizes) for x, s in zip(results, params["out_specs"], strict=True)]


def _over(
    axes: Sequence[tuple[str, int]],
    body: Body,
    taken: Sequence[set[str]],
    given: Sequence[set[str]],
    operands: Sequence[Array],
) -> list[Array]:
    """Run a body at each place along some axes; `taken` and `given` say who names which axis."""
    if not axes:
        return body(*operands)
    (axis, size), *others = axes
    order: list[int] = []

    def at_one_place(*operands: Array) -> dict[str, list[Array]]:
        results = _over(others, body, taken, given, operands)
        differ = [axis in given[n] or is_mapped(x, axis) for n, x in enumerate(results)]
        order[:] = sorted(range(len(results)), key=lambda n: not differ[n])
        count = sum(differ)
        return {
            "differ": [results[n] for n in order[:count]],
            "same": [results[n] for n in order[count:]],
        }

    found = jax.vmap(
        at_one_place,
        in_axes=[0 if axis in names else None for names in taken],
        out_axes={"differ": 0, "same": None},
        axis_name=axis,
        axis_size=size,
    )(*operands)
    by_place = dict(zip(order, [*found["differ"], *found["same"]], strict=True))
    count = len(found["differ"])
    # A result that differs where its spec names no axis is that of the first device, as in JAX.
    first = {n for n in order[:count] if axis not in given[n]}
    return [by_place[n][0] if n in first else by_place[n] for n in range(len(order))]


def _axes_of_dims(spec: PartitionSpec) -> list[tuple[str, ...]]:
    return [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]


def _axes(spec: PartitionSpec) -> list[str]:
    return list(itertools.chain(*_axes_of_dims(spec)))


def _order(spec: PartitionSpec, sizes: Mapping[str, int], rank: int) -> tuple[int, ...]:
    """Return the dims of an array cut by a spec, those of the mesh first, in the mesh's order."""
    places: dict[str, int] = {}
    kept: list[int] = []
    count = 0
    for axes in _dims(spec, rank):
        for axis in axes:
            places[axis] = count
            count += 1
        kept.append(count)
        count += 1
    return (*(places[axis] for axis in sizes if axis in places), *kept)


def _dims(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    dims = _axes_of_dims(spec)
    return [*dims, *[()] * (rank - len(dims))]


def _blocks(value: Array, spec: PartitionSpec, sizes: Mapping[str, int]) -> Array:
    """Return an array with a leading dim for each axis that its spec names."""
    if not _axes(spec):
        return value
    cut: list[int] = []
    for size, axes in zip(value.shape, _dims(spec, value.ndim), strict=True):
        parts = [sizes[axis] for axis in axes]
        cut += [*parts, size // math.prod(parts)]
    return jnp.transpose(jnp.reshape(value, cut), _order(spec, sizes, value.ndim))


def _joined(value: Array, spec: PartitionSpec, sizes: Mapping[str, int]) -> Array:
    """Return the whole array of blocks; the inverse of `_blocks`."""
    named = _axes(spec)
    if not named:
        return value
    block = value.shape[len(named) :]
    order = _order(spec, sizes, len(block))
    back = [order.index(n) for n in range(len(order))]
    shape = [
        size * math.prod(sizes[axis] for axis in axes)
        for size, axes in zip(block, _dims(spec, len(block)), strict=True)
    ]
    return jnp.reshape(jnp.transpose(value, back), shape)
