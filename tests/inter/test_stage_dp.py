"""Stage construction against enumeration, hand arithmetic, and its own claims."""

from __future__ import annotations

import numpy as np
import pytest
from stage_problems import brute_force, check_stages, random_problem

from meshwise.errors import InfeasibleError
from meshwise.inter.objective import objective_s
from meshwise.inter.stage_dp import build_stages
from meshwise.inter.stage_problem import as_alpa

NUM_PROBLEMS = 300
CHUNK = 50


def agree(problem, mode, num_stages=None):
    """Whether there are stages; then they are the best."""
    stated = as_alpa(problem) if mode == "alpa" else problem
    cost, _ = brute_force(stated, num_stages)
    try:
        found = build_stages(problem, mode, num_stages=num_stages, epsilon_s=0.0)
    except InfeasibleError:
        assert cost == np.inf
        return False
    check_stages(stated, found.stages)
    assert found.total_s == pytest.approx(cost, rel=1e-9)
    assert found.total_s == objective_s(stated, found.stages)
    assert found.bound_s <= found.total_s
    assert found.bound_s == pytest.approx(cost, rel=1e-9)
    return True


@pytest.mark.parametrize("mode", ["alpa", "time"])
@pytest.mark.parametrize("first", range(0, NUM_PROBLEMS, CHUNK))
def test_enumeration_finds_nothing_cheaper(first, mode):
    # Every second problem is on a mixed cluster.
    feasible = [
        agree(random_problem(s, mixed=s % 2 == 1), mode) for s in range(first, first + CHUNK)
    ]
    assert CHUNK // 3 <= sum(feasible) < CHUNK


@pytest.mark.parametrize("seed", range(40))
def test_a_given_number_of_stages_is_kept(seed):
    problem = random_problem(seed, mixed=seed % 2 == 1, max_layers=4)
    for count in range(1, problem.costs.num_layers + 1):
        agree(problem, "time", num_stages=count)
