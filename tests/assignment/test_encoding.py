"""Problems in the contest's form: the same optimum, and every choice means the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwise.assignment.encoding import Encoded, encode
from meshwise.assignment.instance import evaluate, is_solution
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.problem import PairCost, Problem, Row, is_feasible, objective

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def random_problem(seed: int, *, fractions: bool = False) -> Problem:
    """Five nodes, and a row or none that weighs nodes and pairs, some with less than zero."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 5)
    costs = [rng.random(n) for n in sizes]
    costs[0] -= 0.5
    pairs: list[PairCost] = []
    for u, v in itertools.combinations(range(5), 2):
        if rng.random() < 0.5:
            cost = rng.random((sizes[u], sizes[v]))
            cost[rng.random(cost.shape) < 0.2] = np.inf
            pairs.append(PairCost(u=u, v=v, cost=cost))
    rows: list[Row] = []
    if rng.random() < 0.9:
        nodes = [(u, rng.integers(-3, 9, sizes[u]).astype(float)) for u in (0, 1, 2, 3)]
        both = [(u, v, rng.integers(0, 5, (sizes[u], sizes[v]))) for u, v in ((2, 4), (0, 3))]
        if fractions:
            nodes[0] = (0, nodes[0][1] / 3)
        limit = float(rng.integers(0, 25))
        weights = tuple((u, v, w.astype(float)) for u, v, w in both)
        rows.append(Row(nodes=tuple(nodes), pairs=weights, limit=limit))
    return Problem(costs=tuple(costs), pairs=tuple(pairs), rows=tuple(rows))


def every_choice(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(c)) for c in problem.costs)))


def extended(encoded: Encoded, choice: tuple[int, ...]) -> list[int]:
    """The choice of all nodes: one that follows others has one choice that its edges allow."""
    instance, full = encoded.instance, list(choice)
    sizes = np.diff(instance.first_choice)
    for node in range(encoded.num_nodes, instance.num_nodes):
        allowed = np.ones(sizes[node], bool)
        for e in np.flatnonzero(instance.edges[:, 1] == node):
            low, high = instance.first_entry[e], instance.first_entry[e + 1]
            row = instance.edge_costs[low:high].reshape(-1, sizes[node])
            allowed &= row[full[instance.edges[e, 0]]] == 0
        (number,) = np.flatnonzero(allowed)
        full.append(int(number))
    return full


@pytest.mark.parametrize("fractions", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_the_same(seed: int, fractions: bool) -> None:
    problem = random_problem(seed, fractions=fractions)
    fitting = [c for c in every_choice(problem) if is_feasible(problem, c)]
    encoded = encode(problem)
    answer = solve_instance(encoded.instance, time_limit_s=300)
    if not fitting:
        assert answer.status == "infeasible"
        return
    want = min(objective(problem, c) for c in fitting)
    assert answer.status == "optimal"
    assert answer.choice is not None
    choice = answer.choice[: encoded.num_nodes]
    assert is_feasible(problem, choice)
    assert objective(problem, choice) == pytest.approx(want, abs=5e-8)
    assert encoded.cost(answer.bound) <= want
    assert encoded.cost(answer.bound) == pytest.approx(want, abs=5e-8)


@pytest.mark.parametrize("seed", range(10))
def test_every_choice_extends_to_one_that_uses_as_much(seed: int) -> None:
    """The followers' choices are those of least cost; no others are finite."""
    problem = random_problem(seed)
    encoded = encode(problem)
    instance = encoded.instance
    for choice in every_choice(problem)[:20]:
        full = extended(encoded, choice)
        found = evaluate(instance, full)
        cost = objective(problem, choice)
        assert (found.cost is None) == np.isinf(cost)
        if found.cost is not None:
            assert encoded.cost(found.cost) == pytest.approx(cost, abs=5e-8)
            assert encoded.cost(found.cost) <= cost + 1e-12
        assert is_solution(instance, full) == is_feasible(problem, choice)


def test_costs_are_whole_units_that_add_up_exactly() -> None:
    problem = Problem(costs=(np.array([1e-9, 2e-9]), np.array([3.0, 1e6])), pairs=())
    encoded = encode(problem)
    assert encoded.instance.costs.max() < 2**53
    assert encoded.cost(0) == pytest.approx(3.0 + 1e-9)
    assert encoded.cost(int(encoded.instance.costs[3])) == pytest.approx(1e6)


@pytest.mark.parametrize("limit", [np.inf, 1e300, 2.0**63])
def test_a_row_that_never_binds_forbids_nothing(limit: float) -> None:
    rows = (Row(nodes=((0, np.array([0.0, 5.0])),), limit=limit),)
    problem = Problem(costs=(np.array([1.0, 0.0]),), pairs=(), rows=rows)
    encoded = encode(problem)
    assert is_solution(encoded.instance, extended(encoded, (1,)))


@pytest.mark.parametrize("flip", [False, True])
def test_a_pair_that_weighs_where_choices_differ_takes_few_more_choices(flip: bool) -> None:
    """Not one for each of 400 pairs; and what fits stays the same."""
    different = np.where(np.eye(20, dtype=bool), 0.0, np.arange(1.0, 21.0))
    row = Row(nodes=(), pairs=((0, 1, different.T if flip else different),), limit=6.0)
    problem = Problem(costs=(np.zeros(20),) * 2, pairs=(), rows=(row,))
    encoded = encode(problem)
    sizes = np.diff(encoded.instance.first_choice)
    assert sizes.max() <= 40
    for choice in every_choice(problem):
        fits = is_solution(encoded.instance, extended(encoded, choice))
        assert fits == is_feasible(problem, choice)
