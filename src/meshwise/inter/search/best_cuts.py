"""Layers cut into runs that follow each other: the best cuts by what the runs cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.kernels.arrays import Floats


def best_cuts(cost: Floats, parts: int) -> Ranges | None:
    """Layers cut into runs: the slowest as fast as can be, then as equal as can be.

    Args:
        cost: Of each run, (first layer, last layer); infinite without a plan.
        parts: Number of runs.

    Returns:
        First and last layer of each run; None if there is no such cut.
    """
    slowest, _ = least_cost(cost, parts, np.maximum)
    if not np.isfinite(slowest):
        return None
    allowed = np.where(cost <= slowest, np.square(cost), np.inf)
    return least_cost(allowed, parts, np.add)[1]


def least_cost(
    cost: Floats, parts: int, joined: Callable[[Floats, Floats], Floats]
) -> tuple[float, Ranges]:
    """The least cost of so many runs that follow each other, and the runs.

    Args:
        cost: Of each run, (first layer, last layer); infinite without a plan.
        parts: Number of runs.
        joined: Cost of runs together: the largest, or the sum.
    """
    count = len(cost)
    best = np.full((parts + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    start = np.zeros((parts + 1, count + 1), np.int64)
    for k in range(1, parts + 1):
        for end in range(k, count + 1):
            whole = joined(best[k - 1, :end], cost[:end, end - 1])
            start[k, end] = int(np.argmin(whole))
            best[k, end] = whole[start[k, end]]
    cuts: list[tuple[int, int]] = []
    end = count
    for k in range(parts, 0, -1):
        first = int(start[k, end])
        cuts.append((first, end - 1))
        end = first
    return float(best[parts, count]), tuple(reversed(cuts))
