"""What lies where results will be, before they are made.

XLA gives each result of a program that overwrites no argument a place of its own, and puts there
whatever is small enough and dies before the result is made.  Only the rest goes into the heap.

Source: XLA buffer_assignment.cc (AssignSingleHloBuffer, MaybeAssignBuffer).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshwise.intra.placement import Lifetime


def beside_results(
    lifetimes: Sequence[Lifetime], results: Sequence[Lifetime]
) -> tuple[Lifetime, ...]:
    """What is left for the heap.

    From the largest on each value goes into the smallest place of a result that is free until the
    value dies.  Values that lie over one another go one by one.

    Args:
        lifetimes: Of values inside of the program.
        results: Of results that have places of their own.
    """
    if not results:
        return tuple(lifetimes)
    places = sorted((_Place(result) for result in results), key=lambda p: p.num_bytes)
    values = [tuple(_values(k, life)) for k, life in enumerate(lifetimes)]
    in_order = sorted((v for some in values for v in some), key=lambda v: (-v.num_bytes, v.start))
    moved = {value for value in in_order if any(place.takes(value) for place in places)}
    return tuple(rest for some in values for rest in _rest(some, moved))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """One of the values that lie over one another in turn.

    Attributes:
        turn: Which lifetime, and which value of it.
        num_bytes: Its size.
        start: First time at which it is live.
        end: Last time.
        is_overwritten: Whether a result may be made over it.
    """

    turn: tuple[int, int]
    num_bytes: int
    start: int
    end: int
    is_overwritten: bool

    def meets(self, other: _Value) -> bool:
        """Whether the two cannot lie in one place."""
        if self.turn[0] == other.turn[0] and abs(self.turn[1] - other.turn[1]) == 1:
            return False
        return self.start <= other.end and other.start <= self.end


def _values(number: int, life: Lifetime) -> Iterator[_Value]:
    last = len(life.ends) - 1
    for i, (start, end) in enumerate(pairwise((life.start, *life.ends))):
        yield _Value(
            turn=(number, i),
            num_bytes=life.num_bytes,
            start=start,
            end=end,
            is_overwritten=life.is_overwritten and i == last,
        )


def _rest(values: Sequence[_Value], moved: set[_Value]) -> Iterator[Lifetime]:
    """Lifetimes of the values that stay, those that follow each other in one."""
    run: list[_Value] = []
    for value in (*values, None):
        if value is not None and value not in moved:
            run.append(value)
        elif run:
            yield Lifetime(
                num_bytes=run[0].num_bytes, start=run[0].start, ends=tuple(v.end for v in run)
            )
            run = []


class _Place:
    """Where a result will be, while values are put there; lives only inside `beside_results`."""

    def __init__(self, result: Lifetime) -> None:
        self.num_bytes, self.until = result.num_bytes, result.start
        self.values: list[_Value] = []

    def takes(self, value: _Value) -> bool:
        """Puts the value here if it is free for it."""
        is_free = (
            value.num_bytes <= self.num_bytes
            and value.end < self.until + value.is_overwritten
            and not any(value.meets(other) for other in self.values)
        )
        if is_free:
            self.values.append(value)
        return is_free
