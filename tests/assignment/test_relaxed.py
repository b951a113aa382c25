"""Reductions and bounds in turn on random problems, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from assignment.random_problems import random_problem
from meshwise.assignment.problem import objective
from meshwise.assignment.reductions.reduction import expanded
from meshwise.assignment.relaxed import relaxed
from meshwise.assignment.solve import solve_relaxed

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def best_cost(problem):
    every = itertools.product(*(range(len(c)) for c in problem.costs))
    return min((objective(problem, c) for c in every), default=np.inf)


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_holds_and_what_is_settled_is_the_best(seed):
    problem = random_problem(seed, holes=seed % 2 == 1)
    wanted = best_cost(problem)
    left = relaxed(problem)
    if np.isinf(wanted):
        assert solve_relaxed(left).status == "infeasible"
        return
    assert left.bound <= wanted + 1e-9
    if left.choice is not None:
        cost = objective(problem, expanded(left.chain, left.choice).tolist())
        assert cost >= wanted - 1e-9
        assert not left.is_settled or cost == pytest.approx(wanted)
    found = solve_relaxed(left)
    assert found.status == "optimal"
    assert found.cost == pytest.approx(wanted)
