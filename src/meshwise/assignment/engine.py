"""Solve a planner's problem in whole units, by the solver of instances."""

from __future__ import annotations

import dataclasses
import math
import time

from meshwise.assignment.encoding import encode
from meshwise.assignment.exact.small_problem import SMALL_COLUMNS
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.options import SolverOptions
from meshwise.assignment.problem import Problem, Solution, is_feasible, objective

# A bound this close to the cost proves it, up to the rounding of costs to whole units (`encode`).
_EXACT = 5e-8
_FINER = 2
_LEAST_S = 0.1
_ROUNDED = "rounded"


def solve_encoded(
    problem: Problem,
    *,
    incumbent: tuple[int, ...] | None,
    time_limit_s: float,
    seed: int,
    brief: bool = False,
) -> Solution:
    """Solve a problem; the answer is never worse than the incumbent.

    Args:
        problem: Each pair of nodes at most once.
        incumbent: A feasible choice, or None.
        time_limit_s: Wall time, in seconds; infinite for none.
        seed: Seed of the solver's random numbers.
        brief: Take a small amount of work, whatever comes of it.

    Returns:
        The answer; its status is "optimal", "infeasible", "bounded" where the counted work ended
        the search, or "time limit" where the clock did.

    Raises:
        SolverError: the solver failed.
    """
    deadline = time.monotonic() + time_limit_s
    found = _solved(problem, incumbent, deadline, seed, brief=brief)
    for _ in range(0 if brief else _FINER):
        if found.status != _ROUNDED or time.monotonic() >= deadline:
            break
        # The best in units that were too coarse: its cost gives finer ones.
        found = _solved(problem, found.choice, deadline, seed)
    if found.status in ("optimal", "infeasible"):
        return found
    late = time.monotonic() >= deadline
    return dataclasses.replace(found, status="time limit" if late else "bounded")


def _solved(
    problem: Problem,
    incumbent: tuple[int, ...] | None,
    deadline: float,
    seed: int,
    *,
    brief: bool = False,
) -> Solution:
    """Solve once; its status is `_ROUNDED` if units were too coarse to call the best optimal."""
    known = objective(problem, incumbent) if incumbent is not None else None
    encoded = encode(problem, reference=known)
    left = max(deadline - time.monotonic(), _LEAST_S)
    # Without rows the first try of a proof nearly always succeeds, three times as fast as HiGHS.
    is_easy = brief and not problem.rows
    answer = solve_instance(
        encoded.instance,
        time_limit_s=left,
        seed=seed,
        options=SolverOptions(
            small_columns=0 if is_easy else SMALL_COLUMNS, counted=True, brief=brief
        ),
    )
    if answer.status == "infeasible" and incumbent is None and encoded.is_exact:
        return Solution(choice=(), cost=math.inf, bound=math.inf, status="infeasible")
    # Where fewer choices fit, a bound on those bounds no others.
    choice, bound = incumbent, encoded.cost(answer.bound if encoded.is_exact else 0)
    if answer.choice is not None:
        found = answer.choice[: encoded.num_nodes]
        # Rows of fractions are rounded, so that what fits here may not fit there.
        if is_feasible(problem, found) and (known is None or objective(problem, found) < known):
            choice = found
    if choice is None:
        return Solution(choice=(), cost=math.inf, bound=bound, status="bounded")
    cost = objective(problem, choice)
    exact = cost - bound <= _EXACT * abs(cost)
    is_best = answer.status == "optimal" and encoded.is_exact
    return Solution(
        choice=choice,
        cost=cost,
        bound=cost if exact else min(bound, cost),
        status="optimal" if exact else _ROUNDED if is_best else "bounded",
    )
