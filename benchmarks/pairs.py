"""Two programs against each other: interleaved pairs, and the median of their ratios."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054  # Normal quantile of a two-sided 95 % interval.


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTimes:
    """Times of two programs that ran in turns.

    Attributes:
        ours_s: Seconds of each run of ours.
        theirs_s: Seconds of each run of the rival, pair by pair.
    """

    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]

    def to_json(self) -> dict[str, float | int | list[float]]:
        """Medians, and the median ratio with its interval."""
        ratios = [a / b for a, b in zip(self.ours_s, self.theirs_s, strict=True)]
        return {
            "num_pairs": len(ratios),
            "ours_median_s": statistics.median(self.ours_s),
            "theirs_median_s": statistics.median(self.theirs_s),
            "ratio_median": statistics.median(ratios),
            "ratio_interval_95": list(median_interval(ratios)),
        }


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median, free of assumptions about the distribution.

    Source: order statistics of the binomial distribution, normal approximation of the ranks.
    """
    ordered = sorted(values)
    count = len(ordered)
    half_width = Z_95 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half_width))
    high = min(count - 1, math.ceil(count / 2 + half_width))
    return ordered[low], ordered[high]


def run_pairs(
    ours: Callable[[], None],
    theirs: Callable[[], None],
    *,
    num_pairs: int,
    num_warmup: int = 3,
) -> PairedTimes:
    """Run two programs in turns; who goes first alternates.

    Args:
        ours: Runs ours once, to the end (it waits for the device).
        theirs: The same for the rival.
        num_pairs: Timed pairs.
        num_warmup: Pairs before them that are not timed.
    """
    ours_s: list[float] = []
    theirs_s: list[float] = []
    for pair in range(-num_warmup, num_pairs):
        sides = [(ours, ours_s), (theirs, theirs_s)]
        for run, times in sides if pair % 2 else reversed(sides):
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if pair >= 0:
                times.append(elapsed)
    return PairedTimes(ours_s=tuple(ours_s), theirs_s=tuple(theirs_s))
