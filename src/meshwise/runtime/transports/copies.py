"""What one process does to move arrays of one shape between two shardings, found out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshwise.resharding.route import Cut, Move, Signal
from meshwise.resharding.tiles import Box, overlap

# A jitted function of tiles on one device.
Program: TypeAlias = Callable[..., Any]


class Rows(NamedTuple):
    """A run of rows of an array.

    Attributes:
        dim: The dim of the rows.
        start: The first one.
        stop: The one behind the last.
    """

    dim: int
    start: int
    stop: int

    def box(self, shape: Sequence[int]) -> Box:
        """Return the elements of an array that are in these rows."""
        whole = [(0, size) for size in shape]
        whole[self.dim] = (self.start, self.stop)
        return tuple(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTile:
    """What lies on a device of the source in this process when the copies begin.

    Attributes:
        shard: The place of the shard among those of this process.
        value: The number of the tile in the route.
        program: Takes the wanted rows out of the shard; None: all of them are wanted.
        starts: The first element that it takes, along each dim.
    """

    shard: int
    value: int
    program: Program | None
    starts: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPhase:
    """The part of a phase of a route that one process carries out.

    Attributes:
        cuts: Programs that make pieces: the program, which values it takes, and which it makes.
        moves: Values that move inside the process, where to, and the numbers of the copies.
        passages: Values that come from other processes, or go to them; signals among them.
        joins: Programs that make tiles of pieces: the program, which values it takes, what it
            makes.
    """

    cuts: tuple[tuple[Program, tuple[int, ...], tuple[int, ...]], ...]
    moves: tuple[tuple[int, ...], tuple[Any, ...], tuple[int, ...]]
    passages: tuple[Move, ...]
    joins: tuple[tuple[Program, tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How arrays of one shape get from one sharding to another, as one process sees it.

    Attributes:
        crossing_bytes: That devices are sent which do not hold them, in all processes.
        copied_bytes: That further devices of the destination copy from those.
        devices: The devices, by their numbers in the route.
        source: The tiles of the source in this process.
        phases: What is done, in order.
        shards: For each device of the destination in this process the value that lies there.
        shared: Places among `shards` of whole shards of the source.
        passed_on: Numbers of whole shards of the source that go to other processes as they are.
    """

    crossing_bytes: int
    copied_bytes: int
    devices: tuple[Any, ...]
    source: tuple[SourceTile, ...]
    phases: tuple[LocalPhase, ...]
    shards: tuple[int, ...]
    shared: tuple[int, ...]
    passed_on: tuple[int, ...]


def part_of(box: Box, wanted: Box | None) -> Box:
    """Return the part of a box that is wanted, by its place in what is wanted.

    Args:
        box: The box.
        wanted: Another one; None: all is wanted.
    """
    if wanted is None:
        return box
    found = zip(overlap(box, wanted), wanted, strict=True)
    return tuple((a - first, b - first) for (a, b), (first, _) in found)


def values_taken(phase: LocalPhase) -> set[int]:
    """Return the numbers of the values that a phase takes.

    Args:
        phase: The phase.
    """
    return {
        *(value for _, values, _ in phase.cuts for value in values),
        *phase.moves[0],
        *(move.value for move in phase.passages),
        *(value for _, values, _ in phase.joins for value in values),
    }


def parts_of_signal(signal: Signal) -> tuple[Cut, Move]:
    """Return what a signal consists of; the element that is sent has a number of its own.

    Args:
        signal: The signal.
    """
    shape = (1,) * signal.rank
    element = -1 - signal.result
    place = tuple((0, 1) for _ in shape)
    cut = Cut(signal.source, signal.value, (place,), (element,))
    return cut, Move(element, signal.source, signal.destination, signal.result, shape)
