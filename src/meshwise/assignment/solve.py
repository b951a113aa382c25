"""Solve a problem: reductions and bounds in turn, then `engine` on what is left.

Large problems go there at once: it ends at the limit of time, whatever it does.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from meshwise.assignment.bounds.row_prices import price_row
from meshwise.assignment.engine import solve_encoded
from meshwise.assignment.network import problem_of
from meshwise.assignment.problem import Problem, Row, Solution, is_feasible, objective
from meshwise.assignment.reductions.reduction import Reduction, reduce_problem
from meshwise.assignment.relaxed import EXACT, Relaxed, answer, infeasible, relaxed
from meshwise.assignment.validity import check_problem

# Costs of pairs from which on a problem is large.
_LARGE = 4_000_000
# Up to so many a row is tried with the solver first, even if no proof is asked for; an answer
# with a bound so close will do.
_BRIEF, _NEARLY = 400_000, 1e-6


def solve(
    problem: Problem,
    *,
    incumbents: Sequence[tuple[int, ...]] = (),
    time_limit_s: float = math.inf,
    seed: int = 0,
    exact: bool = True,
) -> Solution:
    """Solve a problem; the answer is never worse than the best feasible incumbent.

    Args:
        problem: With at most one row, which is not proved: it has weights and a finite limit.
        incumbents: Choices to start from.
        time_limit_s: Wall time, in seconds; infinite for none, so that counted work alone ends the
            search and the answer is the same each time.
        seed: Seed of the solver's random numbers.
        exact: Whether to prove the answer of a problem without rows; if not, a small amount of work
            must do.

    Returns:
        The answer; its status is "optimal", "infeasible", "bounded" where counted work ended the
        search, or "time limit" where the clock did.

    Raises:
        SolverError: the problem is none (`validity.check_problem`), or the solver failed.
    """
    check_problem(problem)
    good = [c for c in incumbents if is_feasible(problem, c)]
    best = min(good, key=lambda c: objective(problem, c), default=None)
    deadline = time.monotonic() + time_limit_s
    if problem.rows:
        return _within_row(problem, best, deadline=deadline, seed=seed)
    if exact and _num_entries(problem) > _LARGE:
        return solve_encoded(problem, incumbent=best, time_limit_s=time_limit_s, seed=seed)
    left = relaxed(problem, best)
    left_s = deadline - time.monotonic()
    return solve_relaxed(left, best=best, time_limit_s=left_s, seed=seed, exact=exact)


def solve_relaxed(
    left: Relaxed,
    *,
    best: tuple[int, ...] | None = None,
    time_limit_s: float = math.inf,
    seed: int = 0,
    exact: bool = True,
) -> Solution:
    """Solve what reductions and bounds left of a problem.

    Args:
        left: What they left.
        best: A choice of the problem; the answer is never worse.
        time_limit_s: As `solve` has it.
        seed: Seed of the solver's random numbers.
        exact: As `solve` has it.
    """
    problem, chain, first = left.problem, left.chain, left.choice
    if left.is_settled:
        if first is None:
            return infeasible()
        return answer(problem, chain, first, best, status="optimal")
    network, bound = left.network, left.bound
    small = problem_of(network)
    if not exact and first is not None and _num_entries(small) > _BRIEF:
        return answer(problem, chain, first, best, status="bounded", bound=bound)
    found = solve_encoded(
        small,
        incumbent=None if first is None else tuple(first.tolist()),
        time_limit_s=time_limit_s,
        seed=seed,
        brief=not exact and first is not None,
    )
    bound = max(found.bound + network.constant, bound)
    if found.choice:
        status = found.status if exact or found.status == "optimal" else "bounded"
        choice = np.array(found.choice, np.int64)
        return answer(problem, chain, choice, best, status=status, bound=bound)
    if best is None:
        return dataclasses.replace(found, bound=bound)
    cost = objective(problem, best)
    return Solution(choice=best, cost=cost, bound=bound, status=found.status)


def _within_row(
    problem: Problem, best: tuple[int, ...] | None, *, deadline: float, seed: int
) -> Solution:
    """Do a bounded amount of work on a problem with a row, whose nodes no reduction touches."""
    (row,) = problem.rows
    ends = {u for u, _ in row.nodes} | {u for pair in row.pairs for u in pair[:2]}
    reduction = reduce_problem(problem, keep=ends)
    if reduction.infeasible:
        return infeasible()
    chain = [reduction]
    first = None if best is None else reduction.restrict(np.array(best, np.int64))
    known = None if first is None else tuple(first.tolist())
    small = _with_row(row, reduction)
    if _num_entries(small) <= _BRIEF:
        left = deadline - time.monotonic()
        found = solve_encoded(small, incumbent=known, time_limit_s=left, seed=seed, brief=True)
        known = found.choice or known
        if found.choice and found.bound >= found.cost * (1 - _NEARLY):
            bound = found.bound + reduction.network.constant
            choice = np.array(found.choice, np.int64)
            return answer(problem, chain, choice, best, status="bounded", bound=bound)
    priced = price_row(small, known)
    if math.isinf(priced.bound):
        return infeasible()
    bound = priced.bound + reduction.network.constant
    if priced.choice is not None:
        status = "optimal" if priced.bound >= priced.cost * (1 - EXACT) else "bounded"
        choice = np.array(priced.choice, np.int64)
        return answer(problem, chain, choice, best, status=status, bound=bound)
    left = deadline - time.monotonic()
    found = solve_encoded(small, incumbent=None, time_limit_s=left, seed=seed)
    bound = max(found.bound + reduction.network.constant, bound)
    if not found.choice:
        return dataclasses.replace(found, bound=bound)
    choice = np.array(found.choice, np.int64)
    return answer(problem, chain, choice, best, status=found.status, bound=bound)


def _with_row(row: Row, reduction: Reduction) -> Problem:
    """Return what is left of a problem, with its row over the choices that are left."""
    number = {int(u): i for i, u in enumerate(reduction.nodes)}
    left = {u: reduction.choices(i) for u, i in number.items()}
    small = dataclasses.replace(
        row,
        nodes=tuple((number[u], w[left[u]]) for u, w in row.nodes),
        pairs=tuple((number[u], number[v], w[np.ix_(left[u], left[v])]) for u, v, w in row.pairs),
    )
    return dataclasses.replace(problem_of(reduction.network), rows=(small,))


def _num_entries(problem: Problem) -> int:
    return sum(pair.cost.size for pair in problem.pairs)
