"""The compiled recurrence of the best cut of layers into runs that follow each other."""

from __future__ import annotations

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import light_kernel


@light_kernel
def cut_costs(whole: Floats, part: Floats, times: Floats, adds: bool) -> tuple[Floats, Ints]:
    """Return the least cost of the first runs, up to each layer, and where the last one starts.

    Args:
        whole: Cost of each run of layers, (first, last); infinite without a plan.
        part: A second cost of each run.
        times: For each place in the row of runs, how many of the second costs a run has there.
        adds: Whether the costs of runs add up; else the largest counts.

    Returns:
        Two arrays over (number of runs, end of the last one): the least cost, infinite if there is
        no such cut, and the first layer of the last run, the lowest of those that cost as little.
    """
    count, parts = len(whole), len(times)
    best = np.full((parts + 1, count + 1), np.inf)
    start = np.zeros((parts + 1, count + 1), np.int64)
    best[0, 0] = 0.0
    for k in range(parts):
        for i in range(k, count):
            before = best[k, i]
            if before == np.inf:
                continue
            for j in range(i, count):
                if whole[i, j] == np.inf:
                    continue
                cost = whole[i, j] + times[k] * part[i, j]
                cost = before + cost if adds else max(before, cost)
                if cost < best[k + 1, j + 1]:
                    best[k + 1, j + 1] = cost
                    start[k + 1, j + 1] = i
    return best, start
