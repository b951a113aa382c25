"""Tiles of a tensor on two meshes, and what of it is one piece on both.

Along each dim a tensor is cut where either mesh cuts it.  Every box between cuts is a *unit task*:
some devices of the source hold all of it, some of the destination need all of it.  A dim that its
parts do not divide has tiles of the rounded-up size; the last ones are shorter, or empty.

Source: AlpaComm section 2 (docs/facts.md section 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from meshwise.graph.layout import Layout

# For each dim the first element and the one behind the last.
Box: TypeAlias = tuple[tuple[int, int], ...]


class UnitTask(NamedTuple):
    """A box that is within one tile on both sides.

    Attributes:
        box: Which elements.
        senders: Devices of the source that hold it, ascending.
        receivers: Devices of the destination that need it, ascending.
    """

    box: Box
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


def boxes(shape: Sequence[int], layout: Layout, sizes: Sequence[int]) -> tuple[Box, ...]:
    """What each device of a mesh holds, row-major.

    Args:
        shape: Of the tensor; the mesh need not divide it.
        layout: How it lies, nothing partial.
        sizes: Of the axes of the mesh.

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
    """Part of a dim that a device holds."""
    index = 0
    for a in axes:
        index = index * sizes[a] + place[a]
    length = -(-size // math.prod(sizes[a] for a in axes))
    return min(index * length, size), min((index + 1) * length, size)


def num_elements(box: Box) -> int:
    """Elements of a box."""
    return math.prod(stop - start for start, stop in box)


def overlap(one: Box, other: Box) -> Box:
    """What two boxes share; of no elements where they do not meet."""
    return tuple(
        (max(a, c), max(a, c, min(b, d))) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def holders(held: Mapping[int, Box]) -> dict[Box, tuple[int, ...]]:
    """Distinct tiles, and who holds each, ascending; empty tiles are left out."""
    found: dict[Box, list[int]] = {}
    for device in sorted(held):
        if num_elements(held[device]):
            found.setdefault(held[device], []).append(device)
    return {box: tuple(devices) for box, devices in sorted(found.items())}


def unit_tasks(source: Mapping[int, Box], destination: Mapping[int, Box]) -> tuple[UnitTask, ...]:
    """All unit tasks, by place in the tensor.

    Args:
        source: What each device holds.
        destination: What each device needs.
    """
    given, wanted = holders(source), holders(destination)
    tasks = [
        UnitTask(box, senders, receivers)
        for tile, receivers in wanted.items()
        for part, senders in given.items()
        if num_elements(box := overlap(tile, part))
    ]
    return tuple(sorted(tasks))
