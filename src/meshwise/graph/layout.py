"""Layouts: how one tensor lies on a mesh, and the algebra of partial values.

A tensor is, along each mesh axis, *split* over one of its dims, *replicated*, or *partial*:
every device holds a term and the value is the reduction of the terms with a monoid (sum, max,
min, and, or).  Mesh axes are small integers, the position in `MeshShape`; the same class serves
the micro-batch axis in time, which is a mesh of one axis.

Source: docs/decisions/0004; Alpa table 2 for the split and replicated part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SUM = "sum"
MONOIDS = (SUM, "max", "min", "and", "or")


class Layout(NamedTuple):
    """Layout of one tensor.

    Attributes:
        dims: For each dim the mesh axes that split it, major to minor.
        partial: Axes over which the value is partial, ascending.
        monoid: How the partial terms combine; empty when `partial` is.
    """

    dims: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    monoid: str = ""

    def __str__(self) -> str:
        """`S0 R`, `R S10 sum:P2`: digits are axes; `sum:P2` is partial along axis 2."""
        return layout_text(self)


def layout_text(layout: Layout) -> str:
    """Return the text of a layout; `parse_layout` reads it back.

    Args:
        layout: The layout.
    """
    words = ["S" + "".join(map(str, axes)) if axes else "R" for axes in layout.dims]
    if layout.partial:
        words.append(f"{layout.monoid}:P" + "".join(map(str, layout.partial)))
    return " ".join(words) if words else "-"


def parse_layout(text: str) -> Layout:
    """Read the text of `layout_text`.

    Args:
        text: The text.

    Returns:
        The layout.

    Raises:
        ValueError: the text is not a layout.
    """
    dims: list[tuple[int, ...]] = []
    partial: tuple[int, ...] = ()
    monoid = ""
    for word in text.split():
        if ":P" in word:
            monoid, _, digits = word.partition(":P")
            partial = tuple(map(int, digits))
        elif word != "-":
            dims.append(tuple(map(int, word[1:])))
    layout = Layout(tuple(dims), partial, monoid)
    known = not partial or monoid in MONOIDS
    # Only what prints as it was read is a layout: `S` without axes and the like are not.
    if layout_text(layout) != text or not known or list(partial) != sorted(set(partial)):
        raise ValueError(f"not a layout: {text!r}")
    return layout


def replicated(rank: int) -> Layout:
    """Return the layout in which every device holds the whole tensor.

    Args:
        rank: Number of dims of the tensor.
    """
    return Layout(((),) * rank)


def used_axes(layout: Layout) -> tuple[int, ...]:
    """Return the axes along which devices hold different data, ascending.

    Args:
        layout: The layout.
    """
    return tuple(sorted((*itertools.chain.from_iterable(layout.dims), *layout.partial)))


def is_valid(layout: Layout, shape: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether a layout fits a shape and a mesh.

    Each axis is there, is used at most once, and divides the dim that it splits; partial axes
    are ascending and have a monoid.

    Args:
        layout: The layout.
        shape: Shape of the whole tensor.
        sizes: Sizes of the mesh axes.
    """
    axes = used_axes(layout)
    if len(set(axes)) != len(axes) or len(layout.dims) != len(shape):
        return False
    if axes and (axes[0] < 0 or axes[-1] >= len(sizes)):
        return False
    if layout.partial != tuple(sorted(layout.partial)):
        return False
    if layout.monoid not in (MONOIDS if layout.partial else ("",)):
        return False
    return all(
        size % math.prod(sizes[a] for a in axes) == 0
        for size, axes in zip(shape, layout.dims, strict=True)
    )


def num_parts(layout: Layout, sizes: Sequence[int]) -> int:
    """Return into how many tiles the tensor is split; partial axes do not count.

    Args:
        layout: The layout.
        sizes: Sizes of the mesh axes.
    """
    return math.prod(sizes[a] for axes in layout.dims for a in axes)


def local_shape(shape: Sequence[int], layout: Layout, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the tile that one device holds.

    Args:
        shape: Shape of the whole tensor.
        layout: How it lies.
        sizes: Sizes of the mesh axes.
    """
    return tuple(
        [
            size // math.prod([sizes[a] for a in axes]) if axes else size
            for size, axes in zip(shape, layout.dims, strict=True)
        ]
    )


def without_partial(layout: Layout) -> Layout:
    """Return the layout after the partial terms were all-reduced.

    Args:
        layout: The layout.
    """
    return Layout(layout.dims)


def shift_in(layout: Layout) -> Layout:
    """Return the layout of the stacked tensor whose slices along a new, whole dim 0 lie as given.

    Args:
        layout: Layout of a slice.
    """
    return Layout(((), *layout.dims), layout.partial, layout.monoid)


def split_layouts(shape: Sequence[int], sizes: Sequence[int]) -> Iterator[Layout]:
    """Yield all layouts without partial axes, several axes on one dim in ascending order only.

    Replicated comes first; the order is deterministic.

    Args:
        shape: Shape of the whole tensor.
        sizes: Sizes of the mesh axes.
    """
    rank = len(shape)
    for choice in itertools.product(range(-1, rank), repeat=len(sizes)):
        dims = tuple(tuple(a for a, d in enumerate(choice) if d == dim) for dim in range(rank))
        layout = Layout(dims)
        if is_valid(layout, shape, sizes):
            yield layout
