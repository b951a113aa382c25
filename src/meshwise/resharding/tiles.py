"""The tiles of a tensor on a mesh, as boxes of elements.

A dim that its parts do not divide has tiles of the rounded-up size; the last ones are shorter, or
empty.

Source: AlpaComm section 2 (docs/facts.md section 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from meshwise.graph.layout import Layout

# For each dim the first element and the one behind the last.
Box: TypeAlias = tuple[tuple[int, int], ...]


def boxes(shape: Sequence[int], layout: Layout, sizes: Sequence[int]) -> tuple[Box, ...]:
    """Return what each device of a mesh holds, row-major.

    Args:
        shape: Shape of the tensor; the mesh need not divide it.
        layout: Its layout, nothing partial.
        sizes: Sizes of the axes of the mesh.

    Raises:
        ValueError: the layout is partial, or is of another rank.
    """
    if layout.partial or len(layout.dims) != len(shape):
        raise ValueError(f"layout {layout} has no tiles of a tensor of shape {list(shape)}")
    return tuple(
        tuple(
            _interval(size, axes, sizes, place)
            for size, axes in zip(shape, layout.dims, strict=True)
        )
        for place in itertools.product(*map(range, sizes))
    )


def _interval(
    size: int, axes: Sequence[int], sizes: Sequence[int], place: Sequence[int]
) -> tuple[int, int]:
    """Return the part of a dim that a device holds."""
    index = 0
    for a in axes:
        index = index * sizes[a] + place[a]
    length = -(-size // math.prod(sizes[a] for a in axes))
    return min(index * length, size), min((index + 1) * length, size)


def num_elements(box: Box) -> int:
    """Return the number of elements of a box.

    Args:
        box: For each dim the first element and the one behind the last.
    """
    return math.prod(stop - start for start, stop in box)


def overlap(one: Box, other: Box) -> Box:
    """Return the box that two boxes share; it has no elements where they do not meet."""
    return tuple(
        (max(a, c), max(a, c, min(b, d))) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def within(box: Box, whole: Box) -> Box:
    """Return a box by its place in a larger one.

    Args:
        box: The box.
        whole: The larger one.
    """
    return tuple((a - first, b - first) for (a, b), (first, _) in zip(box, whole, strict=True))


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the shape of what a box holds.

    Args:
        box: For each dim the first element and the one behind the last.
    """
    return tuple(stop - start for start, stop in box)


def cut_box(box: Box, points: Sequence[float]) -> tuple[Box, ...]:
    """Return the parts of a box that is cut along its longest dim, the first of equal ones.

    Points are rounded to whole elements; a part may have none.

    Args:
        box: The box.
        points: Where it is cut, ascending, as shares of the dim from 0 to 1.
    """
    shape = box_shape(box)
    if not shape:
        # One number is not cut: it belongs to the first part.
        return (box,)
    dim = shape.index(max(shape))
    first = box[dim][0]
    places = [first, *(first + round(shape[dim] * point) for point in points), box[dim][1]]
    return tuple((*box[:dim], pair, *box[dim + 1 :]) for pair in itertools.pairwise(places))


def holders(held: Mapping[int, Box]) -> dict[Box, tuple[int, ...]]:
    """Return the distinct tiles, and the devices that hold each, ascending; no empty tiles."""
    found: dict[Box, list[int]] = {}
    for device in sorted(held):
        if num_elements(held[device]):
            found.setdefault(held[device], []).append(device)
    return {box: tuple(devices) for box, devices in sorted(found.items())}
