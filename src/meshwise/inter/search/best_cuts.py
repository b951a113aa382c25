"""Layers cut into runs that follow each other: the best cuts by what the runs cost."""

from __future__ import annotations

import numpy as np

from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.search.cut_kernels import cut_costs
from meshwise.kernels.arrays import Floats


def best_cuts(cost: Floats, parts: int) -> Ranges | None:
    """Layers cut into runs: the slowest as fast as can be, then as equal as can be.

    Args:
        cost: The cost of each run, (first layer, last layer); infinite without a plan.
        parts: Number of runs.

    Returns:
        First and last layer of each run; None if there is no such cut.
    """
    slowest = least_of_largest(cost, parts)
    if not np.isfinite(slowest):
        return None
    allowed = np.where(cost <= slowest, np.square(cost), np.inf)
    _, start = cut_costs(allowed, allowed, np.zeros(parts), adds=True)
    cuts: list[tuple[int, int]] = []
    end = len(cost)
    for k in range(parts, 0, -1):
        first = int(start[k, end])
        cuts.append((first, end - 1))
        end = first
    return tuple(reversed(cuts))


def least_of_largest(cost: Floats, parts: int) -> float:
    """Return the least cost of the most expensive run of a cut; infinite if there is no cut.

    Args:
        cost: The cost of each run, (first layer, last layer); infinite without a plan.
        parts: Number of runs.
    """
    best, _ = cut_costs(cost, cost, np.zeros(parts), adds=False)
    return float(best[-1, -1])


def least_sum(cost: Floats, extra: Floats, factors: Floats) -> float:
    """Return the least sum of the costs of the runs of a cut; infinite if there is no cut.

    The k-th run of a cut costs cost + factors[k] * extra.

    Args:
        cost: The cost of each run, (first layer, last layer); infinite without a plan.
        extra: A second cost of each run.
        factors: The factor of the second cost for each run of a cut.
    """
    best, _ = cut_costs(cost, extra, factors, adds=True)
    return float(best[-1, -1])
