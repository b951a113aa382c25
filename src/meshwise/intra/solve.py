"""Solves a problem: reductions, then a quick local search for an incumbent, then the ILP."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from meshwise.intra.ilp import solve_ilp
from meshwise.intra.problem import Array, Problem, Solution, is_feasible, objective
from meshwise.intra.reduce import reduce_problem

_SWEEPS = 30


def solve(
    problem: Problem,
    *,
    incumbents: Sequence[tuple[int, ...]] = (),
    time_limit_s: float = 60.0,
    seed: int = 0,
) -> Solution:
    """Solve a problem; the answer is never worse than the best feasible incumbent.

    Raises:
        SolverError: the exact engine failed.
    """
    start = time.monotonic()
    good = [c for c in incumbents if is_feasible(problem, c)]
    best = min(good, key=lambda c: objective(problem, c), default=None)
    reduction = reduce_problem(problem)
    if reduction.infeasible:
        return Solution(choice=(), cost=math.inf, bound=math.inf, status="infeasible", num_left=0)
    small = reduction.problem
    if not small.costs:
        choice = reduction.expand(())
        cost = objective(problem, choice)
        return Solution(choice=choice, cost=cost, bound=cost, status="optimal", num_left=0)
    starts = [r for r in (reduction.restrict(c) for c in good) if r is not None]
    starts.append(tuple(int(np.argmin(c)) for c in small.costs))
    improved = [improve(small, s) for s in starts]
    feasible = [s for s in improved if is_feasible(small, s)]
    first = min(feasible, key=lambda c: objective(small, c), default=None)
    left = time_limit_s - (time.monotonic() - start)
    found = solve_ilp(small, incumbent=first, time_limit_s=left, seed=seed)
    if not found.choice:
        if best is None:
            return found
        choice, cost = best, objective(problem, best)
    else:
        choice = reduction.expand(found.choice)
        cost = objective(problem, choice)
        if best is not None and objective(problem, best) < cost:
            choice, cost = best, objective(problem, best)
    bound = min(found.bound + reduction.constant, cost)
    return Solution(
        choice=choice,
        cost=cost,
        bound=cost if found.status == "optimal" else bound,
        status=found.status,
        num_left=len(small.costs),
    )


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
