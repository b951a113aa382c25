"""The layouts among which a tensor on its own (an input, a boundary, a result) may choose."""

from __future__ import annotations

import functools
import itertools

from meshwise.graph.layout import SUM, Layout, split_layouts, used_axes


@functools.lru_cache(maxsize=4096)
def partial_layouts(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Layout, ...]:
    """All layouts of a tensor, partial sums included."""
    out: list[Layout] = []
    for layout in split_layouts(shape, sizes):
        free = [a for a in range(len(sizes)) if a not in used_axes(layout) and sizes[a] > 1]
        for count in range(len(free) + 1):
            out.extend(
                Layout(layout.dims, axes, SUM if axes else "")
                for axes in itertools.combinations(free, count)
            )
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def whole_layouts(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Layout, ...]:
    """Return all layouts of a tensor without partial sums; axes of one device split nothing.

    Args:
        shape: Shape of the tensor.
        sizes: Sizes of the mesh axes.
    """
    return tuple(
        w for w in split_layouts(shape, sizes) if all(sizes[a] > 1 for axes in w.dims for a in axes)
    )
