"""The solver against brute force; what comes out is checked, bounded, and within its limits."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from assignment.problems import (
    deaf_instance,
    optimum,
    parse_instance,
    random_document,
    random_instance,
)
from doubles.few import few_or_all
from meshwise.assignment import instance_solver, run_state
from meshwise.assignment.answer import Progress
from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.exact.highs import HighsEffort
from meshwise.assignment.exact.integer_program import solve_exactly
from meshwise.assignment.exact.small_problem import solve_small
from meshwise.assignment.instance import INFINITE_COST, evaluate
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.network import network_of
from meshwise.assignment.options import SolverOptions, Watch
from meshwise.errors import SolverError

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# With the small ones given to the exact engine at once, and without.
# Through every phase, however small the problem.
WHOLE = SolverOptions(small_columns=0)
BOTH = pytest.mark.parametrize("small", [SolverOptions(), WHOLE], ids=["small", "whole"])


@BOTH
@pytest.mark.parametrize("count", few_or_all(30, 100))
@pytest.mark.parametrize("tight", [None, 0.05, 0.4])
def test_small_problems_are_solved_and_proved(tight, count, small):
    for seed in range(count):
        instance = random_instance(seed, num_nodes=7, tight=tight)
        want = optimum(instance)
        answer = solve_instance(instance, time_limit_s=600, options=small, seed=seed)
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
    answer = solve_instance(instance, time_limit_s=600, options=WHOLE)
    assert answer.choice is not None
    found = evaluate(instance, answer.choice)
    assert found.cost == answer.cost
    assert found.peak == answer.peak
    assert instance.limit is not None
    assert found.peak <= instance.limit
    assert 0 <= answer.bound <= found.cost
    assert answer.gap <= 0.02


@pytest.mark.parametrize(("cores", "searches"), [(1, 1), (2, 1), (4, 3), (99, 7)])
def test_all_cores_but_one_search(cores, searches, monkeypatch):
    instance = random_instance(3, num_nodes=400, tight=0.3, forbid=False)
    seen = dict[int, set[int]]()
    turn = instance_solver.Primal.turn

    def noted(self):
        seen.setdefault(id(self), set()).add(threading.get_ident())
        turn(self)

    monkeypatch.setattr(instance_solver, "usable_cores", lambda: cores)
    monkeypatch.setattr(instance_solver.Primal, "turn", noted)
    answer = solve_instance(instance, time_limit_s=3, options=WHOLE)
    assert len(seen) == searches
    assert len(set().union(*seen.values())) == searches
    assert answer.choice is not None
    assert evaluate(instance, answer.choice).cost == answer.cost >= answer.bound


def test_a_larger_problem_without_a_limit():
    instance = random_instance(3, num_nodes=200, tight=None, forbid=False)
    answer = solve_instance(instance, time_limit_s=600, options=WHOLE)
    assert answer.choice is not None
    assert evaluate(instance, answer.choice).cost == answer.cost
    assert answer.gap <= 0.02


@BOTH
def test_no_choice_meets_the_limit(small):
    document = random_document(1)
    nodes = document["problem"]["nodes"]
    nodes["usages"] = [[k + 5 for k in row] for row in nodes["usages"]]
    nodes["intervals"] = [[0, 3] for _ in nodes["usages"]]
    document["problem"]["usage_limit"] = 4
    answer = solve_instance(parse_instance(document, "x"), time_limit_s=600, options=small)
    assert answer.status == "infeasible"
    assert answer.choice is None
    assert answer.gap == float("inf")


@BOTH
def test_nothing_to_choose(small):
    empty = {
        "nodes": {"intervals": [], "costs": [], "usages": []},
        "edges": {"nodes": [], "costs": []},
    }
    answer = solve_instance(
        parse_instance({"problem": empty}, "x"),
        time_limit_s=600,
        options=small,
    )
    assert answer.choice == ()
    assert answer.cost == answer.bound == 0
    assert answer.status == "optimal"


@BOTH
def test_a_node_without_choices_has_no_solution(small):
    nodes = {"intervals": [[0, 1]], "costs": [[]], "usages": [[]]}
    document = {"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}}}
    assert (
        solve_instance(
            parse_instance(document, "x"),
            time_limit_s=600,
            options=small,
        ).status
        == "infeasible"
    )


@BOTH
def test_large_costs_are_summed_exactly(small):
    """Each below infinity, their sum beyond 64 bits."""
    count, cost = 30, INFINITE_COST - 1
    nodes = {
        "intervals": [[0, 1]] * count,
        "costs": [[cost, INFINITE_COST]] * count,
        "usages": [[1, 0]] * count,
    }
    document = {"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}, "usage_limit": 99}}
    answer = solve_instance(parse_instance(document, "x"), time_limit_s=600, options=small)
    assert answer.cost == count * cost


def test_progress_is_reported_in_the_calling_thread():
    seen = []
    solve_instance(
        random_instance(3, num_nodes=300, tight=0.3, forbid=False),
        time_limit_s=3,
        options=WHOLE,
        watch=Watch(report=seen.append),
    )
    assert seen
    assert all(p.cost is None or p.bound <= p.cost for p in seen)
    assert np.all(np.diff([p.seconds for p in seen]) >= 0)


@BOTH
@pytest.mark.parametrize("count", few_or_all(15, 60))
def test_what_is_called_optimal_is_optimal_without_a_solution_to_start_from(count, small):
    """Forbidden pairs and a tight limit: the exact engine begins with no cost to compare with."""
    for seed in range(count):
        instance = random_instance(seed, num_nodes=9, tight=0.15)
        answer = solve_instance(instance, time_limit_s=600, options=small, seed=seed)
        assert answer.cost == optimum(instance), seed


@BOTH
@pytest.mark.parametrize("added", [10**9, 10**12, 10**14])
@pytest.mark.parametrize("count", few_or_all(8, 20))
def test_a_constant_on_every_choice_only_adds_to_the_cost(added, count, small):
    for seed in range(count):
        document = random_document(seed, num_nodes=8, tight=0.3)
        want = optimum(parse_instance(document, "x"))
        nodes = document["problem"]["nodes"]
        nodes["costs"] = [[c + added for c in row] for row in nodes["costs"]]
        answer = solve_instance(
            parse_instance(document, "x"),
            time_limit_s=600,
            options=small,
        )
        if want is None:
            assert answer.status == "infeasible"
            continue
        assert answer.cost == answer.bound == want + 8 * added


@BOTH
def test_sums_beyond_floating_point_are_not_called_optimal(small):
    nodes = {"intervals": [[0, 0]], "costs": [[10**18 - 1, 10**18 - 3]], "usages": [[0, 0]]}
    document = {"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}}}
    answer = solve_instance(parse_instance(document, "x"), time_limit_s=600, options=small)
    assert answer.bound <= 10**18 - 3
    assert answer.status != "optimal" or answer.cost == 10**18 - 3


def test_a_limit_that_is_no_number_is_refused():
    with pytest.raises(SolverError, match="time_limit_s=nan"):
        solve_instance(random_instance(1), time_limit_s=float("nan"))


def test_an_interrupt_ends_the_search_with_what_is_known():
    interrupt, seen = threading.Event(), []

    def listen(progress):
        seen.append(progress)
        if progress.cost is not None:
            interrupt.set()

    instance = random_instance(1, num_nodes=3000, tight=0.3, forbid=False)
    answer = solve_instance(
        instance,
        time_limit_s=1000,
        watch=Watch(report=listen, interrupt=interrupt),
        options=WHOLE,
    )
    assert answer.cost is not None
    assert answer.cost <= seen[-1].cost
    assert seen[-1].cost is not None
    assert [p.cost for p in seen[:-1]] == [None] * (len(seen) - 1)


def test_nothing_is_known_after_an_interrupt_at_once():
    interrupt = threading.Event()
    interrupt.set()
    answer = solve_instance(
        random_instance(3, num_nodes=3000, tight=0.3), watch=Watch(interrupt=interrupt)
    )
    assert answer.status in ("unknown", "infeasible")
    assert answer.choice is None


def test_an_interrupt_does_not_wait_for_the_exact_engine():
    """Which would think about the problem for a quarter of the limit."""
    interrupt = threading.Event()
    timer = threading.Timer(0.2, interrupt.set)
    timer.start()
    answer = solve_instance(
        deaf_instance(),
        time_limit_s=80,
        options=SolverOptions(small_columns=10**9, counted=True),
        watch=Watch(interrupt=interrupt),
    )
    timer.join()
    assert answer.status == "unknown"


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_an_error_of_the_listener_stops_the_threads(kind):
    def fail(_):
        raise kind("listener")

    before = threading.active_count()
    instance = random_instance(3, num_nodes=300, tight=0.3, forbid=False)
    with pytest.raises(kind):
        solve_instance(
            instance,
            time_limit_s=60,
            options=WHOLE,
            watch=Watch(report=fail),
        )
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
    answer = solve_instance(instance, time_limit_s=600, watch=Watch(report=seen.append))
    assert answer.status == "optimal"
    assert sum(p.bound == p.cost for p in seen) <= 2


def test_the_unreduced_network_costs_and_uses_what_the_problem_does():
    for seed in range(60):
        instance = random_instance(seed, num_nodes=9, tight=0.3)
        net, rng = network_of(instance), np.random.default_rng(seed)
        choice = np.array([rng.integers(k) for k in net.size], np.int64)
        found = evaluate(instance, choice.tolist())
        cost = cost_of(net, choice)
        assert (found.cost is None) == (not np.isfinite(cost))
        assert found.cost is None or found.cost == round(cost)
        assert instance.limit is not None
        assert found.peak == instance.limit - room_left(net, choice).min(initial=instance.limit)


def test_without_time_the_exact_engine_proves_nothing():
    answer = solve_small(random_instance(3, num_nodes=7), HighsEffort(deadline=0.0))
    assert answer.choice is None
    assert not answer.is_proved


def test_a_small_problem_that_the_exact_engine_cannot_prove_is_proved_by_the_reductions():
    """Its units would be too small for costs that differ by so much."""
    unproved = 0
    for seed in range(10):
        document = random_document(seed, tight=0.3, forbid=False)
        for part in ("nodes", "edges"):
            costs = document["problem"][part]["costs"]
            document["problem"][part]["costs"] = [[c * 10**12 for c in row] for row in costs]
        instance = parse_instance(document, "x")
        small = solve_small(instance, HighsEffort(deadline=time.monotonic() + 600, seed=seed))
        unproved += not small.is_proved
        answer = solve_instance(instance, time_limit_s=600)
        assert answer.status == "optimal"
        assert answer.cost == optimum(instance)
    assert unproved > 0


@pytest.mark.parametrize("tight", [None, 0.3])
def test_a_deterministic_run_repeats_itself(tight):
    """Choices of equal cost abound, of which threads that race would take this or that one."""
    document = random_document(5, num_nodes=120, tight=tight, forbid=False)
    for part in ("nodes", "edges"):
        costs = document["problem"][part]["costs"]
        document["problem"][part]["costs"] = [[c // 12 for c in row] for row in costs]
    instance = parse_instance(document, "x")
    answers = [
        solve_instance(instance, time_limit_s=600, options=replace(WHOLE, counted=True))
        for _ in range(3)
    ]
    assert answers[0].status == "optimal"
    assert len({a.choice for a in answers}) == 1
    other = solve_instance(instance, time_limit_s=600, options=WHOLE)
    assert other.cost == answers[0].cost


def test_counted_work_ends_a_run_without_a_limit_of_time(monkeypatch):
    monkeypatch.setattr(run_state, "_ENTRIES", 2e7)
    instance = random_instance(7, num_nodes=400, tight=0.3, forbid=False)
    # No engine may end it before.
    monkeypatch.setattr(instance_solver, "is_provable", lambda network: False)
    monkeypatch.setattr(instance_solver, "may_solve_rest", lambda ascent: False)
    options = replace(WHOLE, counted=True)
    first, second = (
        solve_instance(instance, time_limit_s=math.inf, options=options) for _ in range(2)
    )
    assert first.status == "feasible"
    assert (first.choice, first.bound) == (second.choice, second.bound)


@BOTH
def test_prices_of_memory_that_grow_without_end_are_no_failure(small):
    """Nothing fits: every price that the bound tries proves more than the one before."""
    costs = [[691703799189], [720396419448, 436145396386, 212666139451]]
    costs += [[137087064991, 314603555178, 227574776223]]
    usages = [[9425482932], [692409819880, 17046528106, 120527529152]]
    usages += [[197076003213, 1050758019110, 617318175749]]
    no = INFINITE_COST
    first = [0, no, 0, 0, 0, no, no, 0, 0]
    second = [no, 342129204948, 603898293057, 206160063403, 911577371561, no, no]
    second += [288221571294, 936699582150]
    intervals = [[-2, -1], [-3, 0], [-3, 2]]
    nodes = {"intervals": intervals, "costs": costs, "usages": usages}
    edges = {"nodes": [[2, 1], [2, 1]], "costs": [first, second]}
    document = {"nodes": nodes, "edges": edges, "usage_limit": 327029015295}
    instance = parse_instance({"problem": document}, "x")
    assert optimum(instance) is None
    assert solve_instance(instance, time_limit_s=600, options=small).status == "infeasible"


def test_the_exact_engine_ends_when_it_is_told_to():
    network = network_of(random_instance(0, num_nodes=40, tight=0.6))
    start = time.monotonic()
    for stop in (1, 0):
        answer = solve_exactly(
            network,
            cutoff=np.inf,
            first_rows=[0],
            effort=HighsEffort(deadline=start + 600),
            stop=np.array([stop], np.int8),
        )
        assert answer.is_proved == (stop == 0)
