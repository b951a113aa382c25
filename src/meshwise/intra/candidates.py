"""The layouts among which a tensor on its own (an input, a boundary, a result) may choose."""

from __future__ import annotations

import functools
import itertools

from meshwise.graph.graph import Tensor
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


def whole_layouts(tensor: Tensor, sizes: tuple[int, ...]) -> tuple[Layout, ...]:
    """Return the layouts without partial sums; axes of one device split nothing.

    Args:
        tensor: The tensor.
        sizes: Sizes of the mesh axes.
    """
    return _whole_layouts(tensor.shape, sizes)


@functools.lru_cache(maxsize=4096)
def _whole_layouts(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Layout, ...]:
    return tuple(
        w for w in split_layouts(shape, sizes) if all(sizes[a] > 1 for axes in w.dims for a in axes)
    )
