"""The solver against brute force; what comes out is checked, bounded, and within its limits."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from intra.solver.problems import optimum, random_document, random_instance
from meshwise.errors import SolverError
from meshwise.intra.solver.instance import INFINITE_COST, evaluate
from meshwise.intra.solver.read import parse_instance
from meshwise.intra.solver.solve import Progress, solve_instance

pytestmark = pytest.mark.usefixtures("compiled_kernels")


@pytest.mark.parametrize("tight", [None, 0.05, 0.4])
def test_small_problems_are_solved_and_proved(tight):
    for seed in range(100):
        instance = random_instance(seed, num_nodes=7, tight=tight)
        want = optimum(instance)
        answer = solve_instance(instance, time_limit_s=600, seed=seed)
        if want is None:
            assert answer.choice is None
            assert answer.status == "infeasible"
            continue
        assert answer.status == "optimal", seed
        assert answer.cost == want == answer.bound
        assert answer.choice is not None
        assert evaluate(instance, answer.choice).cost == want


def test_a_larger_problem_has_a_bound_and_a_choice_that_fits():
    instance = random_instance(3, num_nodes=400, tight=0.3, forbid=False)
    answer = solve_instance(instance, time_limit_s=10)
    assert answer.choice is not None
    found = evaluate(instance, answer.choice)
    assert found.cost == answer.cost
    assert found.peak == answer.peak
    assert instance.limit is not None
    assert found.peak <= instance.limit
    assert 0 <= answer.bound <= found.cost
    assert answer.gap <= 0.02


def test_a_larger_problem_without_a_limit():
    instance = random_instance(3, num_nodes=200, tight=None, forbid=False)
    answer = solve_instance(instance, time_limit_s=60)
    assert answer.choice is not None
    assert evaluate(instance, answer.choice).cost == answer.cost
    assert answer.gap <= 0.02


def test_no_choice_meets_the_limit():
    document = random_document(1)
    nodes = document["problem"]["nodes"]
    nodes["usages"] = [[k + 5 for k in row] for row in nodes["usages"]]
    nodes["intervals"] = [[0, 3] for _ in nodes["usages"]]
    document["problem"]["usage_limit"] = 4
    answer = solve_instance(parse_instance(document, "x"), time_limit_s=600)
    assert answer.status == "infeasible"
    assert answer.choice is None
    assert answer.gap == float("inf")


def test_nothing_to_choose():
    empty = {
        "nodes": {"intervals": [], "costs": [], "usages": []},
        "edges": {"nodes": [], "costs": []},
    }
    answer = solve_instance(parse_instance({"problem": empty}, "x"), time_limit_s=600)
    assert answer.choice == ()
    assert answer.cost == answer.bound == 0
    assert answer.status == "optimal"


def test_a_node_without_choices_has_no_solution():
    nodes = {"intervals": [[0, 1]], "costs": [[]], "usages": [[]]}
    document = {"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}}}
    assert solve_instance(parse_instance(document, "x"), time_limit_s=600).status == "infeasible"


def test_large_costs_are_summed_exactly():
    """Each below infinity, their sum beyond 64 bits."""
    count, cost = 30, INFINITE_COST - 1
    nodes = {
        "intervals": [[0, 1]] * count,
        "costs": [[cost, INFINITE_COST]] * count,
        "usages": [[1, 0]] * count,
    }
    document = {"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}, "usage_limit": 99}}
    answer = solve_instance(parse_instance(document, "x"), time_limit_s=600)
    assert answer.cost == count * cost


def test_progress_is_reported_in_the_calling_thread():
    seen = []
    solve_instance(
        random_instance(3, num_nodes=300, tight=0.3, forbid=False),
        time_limit_s=3,
        report=seen.append,
    )
    assert seen
    assert all(p.cost is None or p.bound <= p.cost for p in seen)
    assert np.all(np.diff([p.seconds for p in seen]) >= 0)


def test_what_is_called_optimal_is_optimal_without_a_solution_to_start_from():
    """Forbidden pairs and a tight limit: the exact engine begins with no cost to compare with."""
    for seed in range(60):
        instance = random_instance(seed, num_nodes=9, tight=0.15)
        answer = solve_instance(instance, time_limit_s=600, seed=seed)
        assert answer.cost == optimum(instance), seed


@pytest.mark.parametrize("added", [10**9, 10**12, 10**14])
def test_a_constant_on_every_choice_only_adds_to_the_cost(added):
    for seed in range(20):
        document = random_document(seed, num_nodes=8, tight=0.3)
        want = optimum(parse_instance(document, "x"))
        nodes = document["problem"]["nodes"]
        nodes["costs"] = [[c + added for c in row] for row in nodes["costs"]]
        answer = solve_instance(parse_instance(document, "x"), time_limit_s=600)
        if want is None:
            assert answer.status == "infeasible"
            continue
        assert answer.cost == answer.bound == want + 8 * added


def test_sums_beyond_floating_point_are_not_called_optimal():
    nodes = {"intervals": [[0, 0]], "costs": [[10**18 - 1, 10**18 - 3]], "usages": [[0, 0]]}
    document = {"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}}}
    answer = solve_instance(parse_instance(document, "x"), time_limit_s=600)
    assert answer.bound <= 10**18 - 3
    assert answer.status != "optimal" or answer.cost == 10**18 - 3


def test_a_limit_that_is_no_number_is_refused():
    with pytest.raises(SolverError, match="time_limit_s=nan"):
        solve_instance(random_instance(1), time_limit_s=float("nan"))


def test_an_error_of_the_listener_stops_the_threads():
    def fail(_):
        raise KeyError("listener")

    before = threading.active_count()
    instance = random_instance(3, num_nodes=300, tight=0.3, forbid=False)
    with pytest.raises(KeyError):
        solve_instance(instance, time_limit_s=60, report=fail)
    assert threading.active_count() <= before + 1


def test_a_bound_that_meets_the_cost_ends_the_search():
    """A grid whose neighbours would rather agree: messages prove it, and nothing is left to do."""
    rng = np.random.default_rng(0)
    rows, size = 60, 8
    number = np.arange(rows * rows).reshape(rows, rows)
    ends = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    edges = np.concatenate([np.stack([u.ravel(), v.ravel()], 1) for u, v in ends]).tolist()
    apart = np.abs(np.arange(size)[:, None] - np.arange(size)[None, :])
    nodes = {
        "intervals": [[0, 0]] * rows**2,
        "costs": rng.integers(0, 1000, (rows**2, size)).tolist(),
        "usages": [[0] * size] * rows**2,
    }
    matrices = [(100 * apart).ravel().tolist()] * len(edges)
    problem = {"nodes": nodes, "edges": {"nodes": edges, "costs": matrices}}
    instance = parse_instance({"problem": problem}, "x")
    seen: list[Progress] = []
    answer = solve_instance(instance, time_limit_s=600, report=seen.append)
    assert answer.status == "optimal"
    assert sum(p.bound == p.cost for p in seen) <= 2
