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


def holders(held: Mapping[int, Box]) -> dict[Box, tuple[int, ...]]:
    """Return the distinct tiles, and the devices that hold each, ascending; no empty tiles."""
    found: dict[Box, list[int]] = {}
    for device in sorted(held):
        if num_elements(held[device]):
            found.setdefault(held[device], []).append(device)
    return {box: tuple(devices) for box, devices in sorted(found.items())}
