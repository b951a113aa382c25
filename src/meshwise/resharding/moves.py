"""The single steps from which resharding within a mesh is composed.

A move is one collective, or a free local step: `slice` keeps a part of a replicated tensor,
`mask` turns a replicated tensor into a partial sum (rank 0 of the axis keeps the value, the other
ranks hold zero).  Only axes at the minor end of a dim can be gathered or exchanged, because only
then are the tiles of a group neighbours.

Source: Alpa table 2, extended by partial sums (docs/decisions/0004) and by the order of axes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from meshwise.graph.layout import SUM, Layout, used_axes

SLICE = "slice"
MASK = "mask"
FREE = frozenset({SLICE, MASK})


class Move(NamedTuple):
    """One step from a layout to `layout`.

    Attributes:
        kind: A collective, `slice` or `mask`.
        axes: Mesh axes of the group; for gather and permute in the order in which they split the
            dim before the step.
        dim: Dim that is gathered, scattered, sliced, reordered or left; -1 if none is.
        to_dim: For all-to-all the dim that the axis splits afterwards; else -1.
        layout: Layout after the step.
        monoid: The monoid of a reduction or mask; else empty.
    """

    kind: str
    axes: tuple[int, ...]
    dim: int
    to_dim: int
    layout: Layout
    monoid: str


def _with_dim(layout: Layout, dim: int, axes: tuple[int, ...]) -> Layout:
    return layout._replace(dims=(*layout.dims[:dim], axes, *layout.dims[dim + 1 :]))


def _without_partial(layout: Layout, axes: tuple[int, ...]) -> Layout:
    left = tuple(a for a in layout.partial if a not in axes)
    return Layout(layout.dims, left, layout.monoid if left else "")


def _extended(
    layout: Layout, dim: int, axis: int, units: tuple[int, ...], sizes: tuple[int, ...]
) -> Layout | None:
    """Return the layout with one more axis on a dim; None if it does not divide the tile."""
    axes = (*layout.dims[dim], axis)
    if units[dim] % math.prod(sizes[a] for a in axes):
        return None
    return _with_dim(layout, dim, axes)


def _local(layout: Layout, units: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Move]:
    """Return slices and masks along the axes on which the tensor is replicated."""
    used = used_axes(layout)
    unused = [a for a in range(len(sizes)) if a not in used]
    for axis, dim in itertools.product(unused, range(len(layout.dims))):
        after = _extended(layout, dim, axis, units, sizes)
        if after is not None:
            yield Move(SLICE, (axis,), dim, -1, after, "")
    if layout.monoid in ("", SUM):
        for axis in unused:
            after = Layout(layout.dims, tuple(sorted((*layout.partial, axis))), SUM)
            yield Move(MASK, (axis,), -1, -1, after, SUM)


def _reductions(layout: Layout, units: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Move]:
    """Return all-reduces over any of the partial axes, reduce-scatters over one."""
    for count in range(1, len(layout.partial) + 1):
        for axes in itertools.combinations(layout.partial, count):
            after = _without_partial(layout, axes)
            yield Move("all-reduce", axes, -1, -1, after, layout.monoid)
    if layout.monoid != SUM:
        return
    for axis, dim in itertools.product(layout.partial, range(len(layout.dims))):
        after = _extended(_without_partial(layout, (axis,)), dim, axis, units, sizes)
        if after is not None:
            yield Move("reduce-scatter", (axis,), dim, -1, after, SUM)


def _exchanges(layout: Layout, units: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Move]:
    """Return gathers of a minor run of axes, all-to-alls of the minor axis, reorders."""
    for dim, axes in enumerate(layout.dims):
        for start in reversed(range(len(axes))):
            after = _with_dim(layout, dim, axes[:start])
            yield Move("all-gather", axes[start:], dim, -1, after, "")
    for dim, to_dim in itertools.permutations(range(len(layout.dims)), 2):
        if axes := layout.dims[dim]:
            left = _with_dim(layout, dim, axes[:-1])
            after = _extended(left, to_dim, axes[-1], units, sizes)
            if after is not None:
                yield Move("all-to-all", (axes[-1],), dim, to_dim, after, "")
    for dim, axes in enumerate(layout.dims):
        for order in itertools.permutations(axes):
            if group := _moved_axes(axes, order, sizes):
                yield Move("permute", group, dim, -1, _with_dim(layout, dim, order), "")


@functools.lru_cache(maxsize=1024)
def _moved_axes(
    axes: tuple[int, ...], order: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Return axes along which a reorder moves any tile; along the others each tile stays."""

    def owners(by: tuple[int, ...]) -> list[dict[int, int]]:
        places = itertools.product(*(range(sizes[a]) for a in by))
        return [dict(zip(by, place, strict=True)) for place in places]

    # Both lists are in the order of the blocks of the dim.
    pairs = list(zip(owners(axes), owners(order), strict=True))
    return tuple(a for a in axes if any(old[a] != new[a] for old, new in pairs))


def moves(layout: Layout, units: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Move]:
    """Return all moves from `layout`, in the fixed order that breaks ties.

    Args:
        layout: The layout to start from.
        units: For each dim its size, or any number with the same divisors among the products of
            mesh sizes.
        sizes: Size of each mesh axis.
    """
    yield from _local(layout, units, sizes)
    yield from _reductions(layout, units, sizes)
    yield from _exchanges(layout, units, sizes)
