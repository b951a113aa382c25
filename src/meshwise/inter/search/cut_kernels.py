"""The compiled recurrence of the best cut of layers into runs that follow each other."""

from __future__ import annotations

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import light_kernel


@light_kernel
def cut_costs(cost: Floats, extra: Floats, factors: Floats, adds: bool) -> tuple[Floats, Ints]:
    """Return the least cost of a cut into runs, for each number of runs and each last layer.

    The k-th run of a cut costs cost + factors[k] * extra.

    Args:
        cost: The cost of each run of layers, (first, last); infinite without a plan.
        extra: A second cost of each run of layers.
        factors: The factor of the second cost for each run of a cut.
        adds: Whether the costs of the runs of a cut add up; else the largest counts.

    Returns:
        Two arrays over (number of runs, end of the last one): the least cost, infinite if there is
        no such cut, and the first layer of the last run, on a tie the lowest.
    """
    count, parts = len(cost), len(factors)
    best = np.full((parts + 1, count + 1), np.inf)
    start = np.zeros((parts + 1, count + 1), np.int64)
    best[0, 0] = 0.0
    for k in range(parts):
        for i in range(k, count):
            before = best[k, i]
            if before == np.inf:
                continue
            for j in range(i, count):
                if cost[i, j] == np.inf:
                    continue
                more = cost[i, j] + factors[k] * extra[i, j]
                found = before + more if adds else max(before, more)
                if found < best[k + 1, j + 1]:
                    best[k + 1, j + 1] = found
                    start[k + 1, j + 1] = i
    return best, start
