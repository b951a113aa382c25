"""Checks of a planner's problem and of an answer to it, apart from all that the solver computes.

A problem is one if its shapes agree and its numbers can be added up.  The costs
of an answer are summed exactly, so that no sum depends on its order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshwise.assignment.problem import Array, Problem, Row, Solution
from meshwise.errors import SolverError

# Larger finite numbers could not be added up.
_MOST = 1e290


def check_problem(problem: Problem) -> None:
    """Check a problem before anything is computed.

    Raises:
        SolverError: nodes or shapes do not agree, a cost is not a number or minus infinity, a
            weight or a limit is not one that can be summed; the message names place and value.
    """
    sizes = [len(c) for c in problem.costs]
    for u, costs in enumerate(problem.costs):
        _check(costs, (sizes[u],), f"the costs of node {u}", can_forbid=True)
    for pair in problem.pairs:
        where = f"the costs of nodes {pair.u} and {pair.v}"
        shape = _shape((pair.u, pair.v), sizes, where)
        _check(pair.cost, shape, where, can_forbid=True)
    for number, row in enumerate(problem.rows):
        _check_row(row, sizes, f"row {number}" + (f" ({row.name})" if row.name else ""))


def check_solution(problem: Problem, solution: Solution) -> None:
    """Compute the objective of an answer again.

    Args:
        problem: The problem, without rows.
        solution: An answer with a choice.

    Raises:
        SolverError: the choice is none of the problem, or its objective or bound is not what the
            answer says.
    """
    terms = _terms(problem, solution.choice)
    # The exact sum, rounded once; the solver may have rounded once for each term.
    exact = math.fsum(terms)
    slack = math.fsum(map(abs, terms)) * (len(terms) + 1) * 2.0**-52
    if abs(exact - solution.cost) > slack:
        raise SolverError(f"the solver claims {solution.cost}, the choice costs {exact}")
    if solution.bound > exact + 2 * slack:
        raise SolverError("the lower bound lies above the cost of the answer")


def _terms(problem: Problem, choice: Sequence[int]) -> list[float]:
    """Return costs of a choice, all of them finite."""
    if len(choice) != len(problem.costs):
        raise SolverError(f"{len(choice)} choices for {len(problem.costs)} nodes")
    terms: list[float] = []
    for node, (costs, i) in enumerate(zip(problem.costs, choice, strict=True)):
        if not 0 <= i < len(costs) or not math.isfinite(float(costs[i])):
            raise SolverError(f"node {node} cannot take choice {i}")
        terms.append(float(costs[i]))
    for pair in problem.pairs:
        cost = float(pair.cost[choice[pair.u], choice[pair.v]])
        if not math.isfinite(cost):
            raise SolverError(f"nodes {pair.u} and {pair.v} cannot take these choices together")
        terms.append(cost)
    return terms


def _check_row(row: Row, sizes: Sequence[int], name: str) -> None:
    if np.isnan(row.limit):
        raise SolverError(f"the limit of {name} is {row.limit}")
    for u, weights in row.nodes:
        where = f"the weights of node {u} in {name}"
        _check(weights, _shape((u,), sizes, where), where)
    for u, v, weights in row.pairs:
        where = f"the weights of nodes {u} and {v} in {name}"
        _check(weights, _shape((u, v), sizes, where), where)


def _shape(nodes: tuple[int, ...], sizes: Sequence[int], where: str) -> tuple[int, ...]:
    for u in nodes:
        if not 0 <= u < len(sizes):
            raise SolverError(f"{where}: there is no node {u}, but {len(sizes)} from 0 on")
    if len(nodes) == 2 and nodes[0] >= nodes[1]:
        raise SolverError(f"{where}: the first node of a pair must come before the second")
    return tuple(sizes[u] for u in nodes)


def _check(values: Array, shape: tuple[int, ...], where: str, *, can_forbid: bool = False) -> None:
    if values.shape != shape:
        raise SolverError(f"{where} have the shape {values.shape}, and choices {shape}")
    # Quick where all is well; comparisons with NaN are false.
    if not values.size or (values.min() >= -_MOST and values.max() <= _MOST):
        return
    good = np.abs(values) <= _MOST
    if can_forbid:
        good |= values == np.inf
    if not good.all():
        at = tuple(np.argwhere(~good)[0].tolist())
        what = "infinity or " if can_forbid else ""
        raise SolverError(
            f"{where}: {values[at]} for choice {', '.join(map(str, at))}; "
            f"it must be {what}a number between -{_MOST:g} and {_MOST:g}"
        )
