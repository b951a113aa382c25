"""Coordinate descent: a quick way from any choice to a better one."""

from __future__ import annotations

import numpy as np

from meshwise.intra.problem import Array, Problem

_SWEEPS = 30


def improve(problem: Problem, choice: tuple[int, ...]) -> tuple[int, ...]:
    """Best choice node by node until nothing changes; rows are not looked at."""
    neighbours: list[list[tuple[int, Array]]] = [[] for _ in problem.costs]
    for pair in problem.pairs:
        neighbours[pair.u].append((pair.v, pair.cost))
        neighbours[pair.v].append((pair.u, pair.cost.T))
    current = list(choice)
    for _ in range(_SWEEPS):
        changed = False
        for u, costs in enumerate(problem.costs):
            total = costs
            for v, matrix in neighbours[u]:
                total = total + matrix[:, current[v]]
            best = int(np.argmin(total))
            if total[best] < total[current[u]]:
                current[u] = best
                changed = True
        if not changed:
            break
    return tuple(current)
