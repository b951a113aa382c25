"""Checks an answer independently of the solver, in exact integers.

Costs become whole femtoseconds and weights whole bytes before anything is added, so that no sum
depends on its order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.assignment.problem import Problem, Solution
from meshwise.errors import SolverError

FEMTO = 10**15


def femtoseconds(seconds: float) -> int:
    """Exact value of a float, rounded once."""
    numerator, denominator = seconds.as_integer_ratio()
    return (2 * numerator * FEMTO + denominator) // (2 * denominator)


def objective_fs(problem: Problem, choice: Sequence[int]) -> int:
    """Objective of a choice in femtoseconds.

    Raises:
        SolverError: the choice does not fit the problem, or takes a forbidden one.
    """
    if len(choice) != len(problem.costs):
        raise SolverError(f"{len(choice)} choices for {len(problem.costs)} nodes")
    total = 0
    for node, (costs, i) in enumerate(zip(problem.costs, choice, strict=True)):
        if not 0 <= i < len(costs) or not math.isfinite(float(costs[i])):
            raise SolverError(f"node {node} cannot take choice {i}")
        total += femtoseconds(float(costs[i]))
    for pair in problem.pairs:
        cost = float(pair.cost[choice[pair.u], choice[pair.v]])
        if not math.isfinite(cost):
            raise SolverError(f"nodes {pair.u} and {pair.v} cannot take these choices together")
        total += femtoseconds(cost)
    return total


def row_units(problem: Problem, choice: Sequence[int], number: int) -> int:
    """Left side of a row; weights are whole bytes."""
    row = problem.rows[number]
    total = sum(round(float(weights[choice[node]])) for node, weights in row.nodes)
    return total + sum(round(float(w[choice[u], choice[v]])) for u, v, w in row.pairs)


def check_solution(problem: Problem, solution: Solution) -> None:
    """Recompute the objective and all rows of an answer.

    Raises:
        SolverError: the answer breaks a row, or its objective or bound is not what it says.
    """
    exact = objective_fs(problem, solution.choice)
    claimed = femtoseconds(solution.cost)
    # Each float sum may round once a term; each term was rounded to half a femtosecond.
    terms = len(problem.costs) + len(problem.pairs)
    slack = terms + math.ceil(abs(exact) * terms * 2.0**-52)
    if abs(exact - claimed) > slack:
        raise SolverError(f"the solver claims {claimed} fs, the choice costs {exact} fs")
    if femtoseconds(solution.bound) > claimed + slack:
        raise SolverError("the lower bound lies above the cost of the answer")
    for number, row in enumerate(problem.rows):
        if row_units(problem, solution.choice, number) > row.limit:
            raise SolverError(f"the answer breaks the row {row.name!r}")
