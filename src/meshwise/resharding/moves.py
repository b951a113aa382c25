"""The single steps from which resharding within a mesh is composed.

A move is one collective, or a free local step: `slice` keeps a part of a replicated tensor,
`mask` turns a replicated tensor into a partial sum (rank 0 of the axis keeps the value, the other
ranks hold zero).  Only axes at the minor end of a dim can be gathered or exchanged, because only
then are the tiles of a group neighbours.

Source: Alpa table 2, extended by partial sums (DESIGN decision 6) and by the order of axes.
"""

from __future__ import annotations

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
        monoid: Of a reduction or mask; else empty.
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


def _divides(layout: Layout, dim: int, axis: int, units: tuple[int, ...], sizes: tuple[int, ...]):
    parts = math.prod(sizes[a] for a in layout.dims[dim]) * sizes[axis]
    return units[dim] % parts == 0


def moves(layout: Layout, units: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Move]:
    """All moves from `layout`, in the fixed order that breaks ties.

    Args:
        layout: Where to start.
        units: For each dim its size, or any number with the same divisors among the mesh sizes.
        sizes: Size of each mesh axis.
    """
    rank = len(layout.dims)
    unused = [a for a in range(len(sizes)) if a not in used_axes(layout)]
    for axis, dim in itertools.product(unused, range(rank)):
        if _divides(layout, dim, axis, units, sizes):
            after = _with_dim(layout, dim, (*layout.dims[dim], axis))
            yield Move(SLICE, (axis,), dim, -1, after, "")
    if layout.monoid in ("", SUM):
        for axis in unused:
            after = Layout(layout.dims, tuple(sorted((*layout.partial, axis))), SUM)
            yield Move(MASK, (axis,), -1, -1, after, SUM)
    for count in range(1, len(layout.partial) + 1):
        for axes in itertools.combinations(layout.partial, count):
            after = _without_partial(layout, axes)
            yield Move("all-reduce", axes, -1, -1, after, layout.monoid)
    if layout.monoid == SUM:
        for axis, dim in itertools.product(layout.partial, range(rank)):
            if _divides(layout, dim, axis, units, sizes):
                after = _without_partial(layout, (axis,))
                after = _with_dim(after, dim, (*layout.dims[dim], axis))
                yield Move("reduce-scatter", (axis,), dim, -1, after, SUM)
    for dim, axes in enumerate(layout.dims):
        for start in reversed(range(len(axes))):
            after = _with_dim(layout, dim, axes[:start])
            yield Move("all-gather", axes[start:], dim, -1, after, "")
    for dim, to_dim in itertools.permutations(range(rank), 2):
        axes = layout.dims[dim]
        if axes and _divides(layout, to_dim, axes[-1], units, sizes):
            after = _with_dim(layout, dim, axes[:-1])
            after = _with_dim(after, to_dim, (*layout.dims[to_dim], axes[-1]))
            yield Move("all-to-all", (axes[-1],), dim, to_dim, after, "")
    for dim, axes in enumerate(layout.dims):
        for order in itertools.permutations(axes):
            changed = [i for i in range(len(axes)) if order[i] != axes[i]]
            if changed:
                group = axes[changed[0] : changed[-1] + 1]
                yield Move("permute", group, dim, -1, _with_dim(layout, dim, order), "")
