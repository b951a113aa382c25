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
    # A run that would end before it begins is none.
    cost = np.where(np.tri(count, k=-1, dtype=np.bool_), np.inf, cost)
    best = np.full((parts + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    start = np.zeros((parts + 1, count + 1), np.int64)
    for k in range(1, parts + 1):
        whole = joined(best[k - 1, :-1, None], cost)
        start[k, 1:] = whole.argmin(axis=0)
        best[k, 1:] = whole.min(axis=0)
    cuts: list[tuple[int, int]] = []
    end = count
    for k in range(parts, 0, -1):
        first = int(start[k, end])
        cuts.append((first, end - 1))
        end = first
    return float(best[parts, count]), tuple(reversed(cuts))
