"""The planner's problems through the solver, against HiGHS on the full formulation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from doubles.few import few_or_all
from meshwise.assignment.engine import solve_encoded
from meshwise.assignment.problem import PairCost, Problem, Row, is_feasible, objective, row_weight
from oracle.full_formulation import solve_ilp


def random_problem(seed: int, tight: float) -> Problem:
    """Nodes in a chain with further pairs; a row that weighs nodes and pairs.

    Args:
        seed: Of the random numbers.
        tight: Where the row's limit lies between the weight of a random choice and the least one.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(8, 18))
    sizes = rng.integers(1, 6, count)
    ends = {(v - 1, v) for v in range(1, count)}
    for _ in range(count // 2):
        u, v = sorted(rng.choice(count, 2, replace=False).tolist())
        ends.add((u, v))
    pairs: list[PairCost] = []
    for u, v in sorted(ends):
        cost = rng.random((sizes[u], sizes[v]))
        # Choice 0 goes with everything, so that without rows there is always an answer.
        hole = rng.random(cost.shape) < 0.25
        hole[0], hole[:, 0] = False, False
        cost[hole] = np.inf
        pairs.append(PairCost(u=u, v=v, cost=cost))
    members = rng.choice(count, count // 2, replace=False).tolist()
    nodes = tuple((u, rng.integers(0, 100, sizes[u]).astype(float)) for u in members)
    both = tuple((p.u, p.v, rng.integers(0, 50, p.cost.shape).astype(float)) for p in pairs[:2])
    row = Row(nodes=nodes, pairs=both, limit=0.0)
    some = row_weight(row, [int(rng.integers(n)) for n in sizes])
    least = sum(float(w.min()) for _, w in nodes) + sum(float(w.min()) for _, _, w in both)
    limit = float(np.floor(least + (1 - tight) * (some - least)))
    costs = tuple(rng.random(n) for n in sizes)
    return Problem(costs=costs, pairs=tuple(pairs), rows=(dataclasses.replace(row, limit=limit),))


@pytest.mark.parametrize("count", few_or_all(30, 100))
@pytest.mark.parametrize("tight", [0.1, 0.5, 0.8])
def test_the_solver_agrees_with_the_full_formulation(tight: float, count: int) -> None:
    infeasible = 0
    for seed in range(count):
        problem = random_problem(seed, tight)
        want = solve_ilp(problem, incumbent=None, time_limit_s=600, seed=0)
        found = solve_encoded(problem, incumbent=None, time_limit_s=600, seed=seed)
        assert found.status == want.status, seed
        if not want.choice:
            infeasible += 1
            continue
        assert is_feasible(problem, found.choice)
        assert objective(problem, found.choice) == found.cost
        assert found.cost == pytest.approx(want.cost, rel=1e-7)
        assert found.bound <= want.cost * (1 + 1e-7)
    assert infeasible < 90


def test_an_incumbent_is_never_made_worse() -> None:
    problem = random_problem(3, 0.1)
    best = solve_encoded(problem, incumbent=None, time_limit_s=600, seed=0)
    again = solve_encoded(problem, incumbent=best.choice, time_limit_s=600, seed=0)
    assert again.cost == best.cost
    assert again.status == "optimal"
    hurried = solve_encoded(problem, incumbent=best.choice, time_limit_s=0.0, seed=0)
    assert hurried.cost == best.cost


def test_rows_of_fractions_prove_nothing() -> None:
    """In floating point three thirds fit into 1.0; in whole units of usage they do not."""
    costs = tuple(np.array([1.0, 0.0]) for _ in range(3))
    row = Row(nodes=tuple((u, np.array([0.0, 1 / 3])) for u in range(3)), limit=1.0)
    problem = Problem(costs=costs, pairs=(), rows=(row,))
    assert is_feasible(problem, (1, 1, 1))
    found = solve_encoded(problem, incumbent=None, time_limit_s=5, seed=0)
    assert is_feasible(problem, found.choice)
    assert found.bound <= 0.0
    assert (found.status == "optimal") == (found.cost == 0.0)


def test_a_negative_total_is_proved_too() -> None:
    problem = Problem(costs=(np.array([-5.0, -4.0]), np.array([-1.0, 0.0])), pairs=())
    found = solve_encoded(problem, incumbent=None, time_limit_s=5, seed=0)
    assert (found.choice, found.cost, found.status) == ((0, 0), -6.0, "optimal")


def test_a_bounded_amount_of_work_bounds_and_does_not_lose_the_incumbent() -> None:
    seen = 0
    for seed in range(30):
        problem = random_problem(seed, 0.5)
        want = solve_encoded(problem, incumbent=None, time_limit_s=600, seed=0)
        found = solve_encoded(problem, incumbent=None, time_limit_s=600, seed=0, brief=True)
        assert found.bound <= want.cost * (1 + 1e-6)
        if not want.choice:
            continue
        seen += 1
        again = solve_encoded(problem, incumbent=want.choice, time_limit_s=600, seed=0, brief=True)
        assert again.cost == pytest.approx(want.cost)
    assert seen > 10
