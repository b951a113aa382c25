"""How long one turn of a loop takes that a program runs many times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The care with which something is measured.

    Attributes:
        repeats: Runs of which the median counts.
        run_s: Seconds that a run takes at least; it has as many turns as that needs.
        max_turns: The most turns of a run.
    """

    repeats: int
    run_s: float
    max_turns: int = 10_000


def seconds_a_turn(
    run: Callable[[int], object], effort: Repetition, now: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median seconds of one turn, without the call itself.

    Args:
        run: Runs a number of turns and waits for their end; the first call may compile.
        effort: The care with which it is measured.
        now: The clock.
    """

    def timed(turns: int) -> float:
        start = now()
        run(turns)
        return now() - start

    timed(1)
    call = min(timed(0), timed(0))
    turns = 1
    # The least of two, so that one slow run does not end the search early.
    while turns < effort.max_turns and min(timed(turns), timed(turns)) < call + effort.run_s:
        turns *= 2
    while True:
        # In pairs, so that a change of load meets both.
        full: list[float] = []
        empty: list[float] = []
        for _ in range(effort.repeats):
            full.append(timed(turns))
            empty.append(timed(0))
        total, call = statistics.median(full), statistics.median(empty)
        # The call copies its operands: where the turns take less than it, noise decides.
        if total > 2 * call or turns >= effort.max_turns:
            return (total - call if total > call else total) / turns
        turns *= 2
