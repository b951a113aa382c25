"""Solve a problem: reductions and dual ascent in turn, then `engine` on what is left.

Large problems, and those with rows that are to be proved, go there at once: its reductions are
compiled and reach further.  What is small does without its kernels, which take a while to compile
on a machine that does not keep them yet.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.dual_ascent import ascend
from meshwise.assignment.bounds.row_prices import Priced, price_rows
from meshwise.assignment.engine import solve_encoded
from meshwise.assignment.problem import Problem, Row, Solution, is_feasible, objective
from meshwise.assignment.reductions.problem_reduction import Reduction, reduce_problem
from meshwise.assignment.validity import check_problem
from meshwise.errors import SolverError

# Is given a problem and the cost of its solution, None without one.
Recorder = Callable[[Problem, float | None], object]

# Reductions and dual ascent take turns while each turn removes a good part of the choices.
_ROUNDS = 8
_PASSES = 60
_SHRINK = 0.9
# Costs of pairs from which on a problem is large.
_LARGE = 4_000_000
# Up to so many the rows are tried with the solver first, even if no proof is asked for; an answer
# with a bound so close will do.
_BRIEF, _NEARLY = 400_000, 1e-6
# A bound this close to the cost proves it, up to the rounding of sums.
_EXACT = 1e-9


def solve(
    problem: Problem,
    *,
    incumbents: Sequence[tuple[int, ...]] = (),
    time_limit_s: float = 60.0,
    seed: int = 0,
    exact: bool = True,
    record: Recorder | None = None,
) -> Solution:
    """Solve a problem; the answer is never worse than the best feasible incumbent.

    Args:
        problem: The problem.
        incumbents: Choices to start from.
        time_limit_s: Wall time, in seconds.
        seed: Of the solver.
        exact: Whether to prove the answer; if not, a bounded amount of work must do.
        record: Is given the problem afterwards, and what its solution costs, if there is one.

    Raises:
        SolverError: the problem is none (`valid.check_problem`), or the solver failed.
    """
    check_problem(problem)
    good = [c for c in incumbents if is_feasible(problem, c)]
    best = min(good, key=lambda c: objective(problem, c), default=None)
    try:
        found = _solved(problem, best, time_limit_s, seed, exact=exact)
    except SolverError:
        if record is not None:
            record(problem, None)
        raise
    if record is not None:
        record(problem, found.cost if found.choice else None)
    return found


def _solved(
    problem: Problem, best: tuple[int, ...] | None, time_limit_s: float, seed: int, *, exact: bool
) -> Solution:
    deadline = time.monotonic() + time_limit_s
    if any(not _has_weights(row) and row.limit < 0 for row in problem.rows):
        return _none(())
    problem = _without_idle_rows(problem)
    if exact and (problem.rows or _num_entries(problem) > _LARGE):
        found = solve_encoded(problem, incumbent=best, time_limit_s=time_limit_s, seed=seed)
        if found.status == "infeasible" and problem.rows:
            return _none(price_rows(problem, None).nearest)
        return found
    return _in_turns(problem, best, deadline=deadline, seed=seed, exact=exact)


def _in_turns(
    problem: Problem, best: tuple[int, ...] | None, *, deadline: float, seed: int, exact: bool
) -> Solution:
    """Reductions and bounds in turn, then the solver."""
    chain: list[Reduction] = []
    small, first, constant, bound = problem, best, 0.0, 0.0
    for _ in range(_ROUNDS):
        reduction = reduce_problem(small)
        if reduction.infeasible:
            return _none(())
        chain.append(reduction)
        small = reduction.problem
        constant += reduction.constant
        if not small.costs:
            return _answer(problem, chain, (), best, status="optimal", num_left=0)
        first = reduction.restrict(first) if first is not None else None
        before = sum(len(c) for c in small.costs)
        if not exact:
            first, proved = _briefly(small, first, deadline, seed)
            if proved is not None:
                bound = proved
                break
        found = price_rows(small, first) if problem.rows else ascend(small, first, passes=_PASSES)
        if math.isinf(found.bound):
            nearest = found.nearest if isinstance(found, Priced) else None
            return _none(_expanded(chain, nearest) if nearest else ())
        first, bound = found.choice, found.bound
        if first is not None and bound >= found.cost * (1 - _EXACT):
            return _answer(problem, chain, first, best, status="optimal", num_left=0)
        if isinstance(found, Priced) or sum(map(np.sum, found.keep)) > _SHRINK * before:
            break
        small = _restricted(small, found.keep)
    if not exact and first is not None:
        return _answer(
            problem,
            chain,
            first,
            best,
            status="bounded",
            num_left=len(small.costs),
            bound=bound + constant,
        )
    left = deadline - time.monotonic()
    found = solve_encoded(small, incumbent=first, time_limit_s=left, seed=seed)
    bound = max(found.bound, bound) + constant
    if found.choice:
        return _answer(
            problem,
            chain,
            found.choice,
            best,
            status=found.status,
            num_left=len(small.costs),
            bound=bound,
        )
    if best is None:
        return dataclasses.replace(found, bound=bound)
    return Solution(
        choice=best,
        cost=objective(problem, best),
        bound=bound,
        status=found.status,
        num_left=len(small.costs),
    )


def _briefly(
    problem: Problem, first: tuple[int, ...] | None, deadline: float, seed: int
) -> tuple[tuple[int, ...] | None, float | None]:
    """What the solver finds with a bounded amount of work, and a bound if that will do."""
    if _num_entries(problem) > _BRIEF:
        return first, None
    left = deadline - time.monotonic()
    found = solve_encoded(problem, incumbent=first, time_limit_s=left, seed=seed, brief=True)
    if not found.choice:
        return first, None
    is_near = found.bound >= found.cost * (1 - _NEARLY)
    return found.choice, found.bound if is_near or not problem.rows else None


def _has_weights(row: Row) -> bool:
    return bool(row.nodes or row.pairs)


def _without_idle_rows(problem: Problem) -> Problem:
    """Rows that nothing breaks have no price that could be computed with."""
    rows = tuple(row for row in problem.rows if row.limit < math.inf and _has_weights(row))
    return dataclasses.replace(problem, rows=rows) if len(rows) < len(problem.rows) else problem


def _num_entries(problem: Problem) -> int:
    return sum(pair.cost.size for pair in problem.pairs)


def _none(nearest: tuple[int, ...]) -> Solution:
    return Solution(
        choice=(), cost=math.inf, bound=math.inf, status="infeasible", num_left=0, nearest=nearest
    )


def _expanded(chain: Sequence[Reduction], choice: tuple[int, ...]) -> tuple[int, ...]:
    for reduction in reversed(chain):
        choice = reduction.expand(choice)
    return choice


def _restricted(problem: Problem, keep: Sequence[NDArray[np.bool_]]) -> Problem:
    """Forbid the choices outside of `keep`; the next reduction removes them."""
    return Problem(
        costs=tuple(np.where(mask, c, np.inf) for c, mask in zip(problem.costs, keep, strict=True)),
        pairs=problem.pairs,
        rows=problem.rows,
    )


def _answer(
    problem: Problem,
    chain: Sequence[Reduction],
    choice: tuple[int, ...],
    best: tuple[int, ...] | None,
    *,
    status: str,
    num_left: int,
    bound: float = -math.inf,
) -> Solution:
    """Extend a choice of the last reduction to the whole problem."""
    choice = _expanded(chain, choice)
    cost = objective(problem, choice)
    if best is not None and objective(problem, best) < cost:
        choice, cost = best, objective(problem, best)
    return Solution(
        choice=choice,
        cost=cost,
        bound=cost if status == "optimal" else min(bound, cost),
        status=status,
        num_left=num_left,
    )
