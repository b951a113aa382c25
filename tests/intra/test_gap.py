"""The gap of a plan is certified: no plan of its space is cheaper than its bound."""

from __future__ import annotations

import math

import pytest

from doubles.graph_builders import mesh, random_graph
from meshwise.assignment.problem import Solution
from meshwise.errors import InfeasibleError
from meshwise.intra.limit import fit
from meshwise.intra.limit.refusal import TooLargeError
from meshwise.intra.network import build_network
from meshwise.intra.options import IntraOptions
from meshwise.intra.plan_graph import free_answer, plan_graph, planned, prepared, relative_gap
from meshwise.intra.price import step_time_s
from oracle.brute_force import brute_force

MESH = mesh(2, bandwidths=(1e6,))


def test_no_bound_is_no_gap_of_zero() -> None:
    assert relative_gap(2.0, -math.inf) == math.inf
    assert relative_gap(2.0, 1.5) == 0.25
    assert relative_gap(0.0, 0.0) == 0.0


@pytest.mark.parametrize("first", [0, 20])
def test_the_bound_holds_also_where_nothing_is_proved(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without enumeration the answer within a memory limit is only bounded."""
    monkeypatch.setattr(fit, "_SMALL_NODES", 0)
    bounded = 0
    for seed in range(first, first + 20):
        graph = random_graph(seed, 6)
        free = plan_graph(graph, MESH, IntraOptions())
        limit = int(0.9 * free.peak_bytes)
        try:
            found = plan_graph(graph, MESH, IntraOptions(memory_bytes=limit))
        except InfeasibleError:
            continue
        network = build_network(graph, MESH, IntraOptions())
        best, _ = brute_force(network, limit, below=found.objective_s * (1 + 1e-9))
        assert found.bound_s <= best * (1 + 1e-9)
        assert found.gap == relative_gap(found.objective_s, found.bound_s)
        # The gap speaks of step times: the price of a plan is its objective.
        price = step_time_s(graph, found.decision, MESH)
        assert price == pytest.approx(found.objective_s, rel=1e-9)
        bounded += found.status != "optimal"
    assert bounded > 0


@pytest.mark.parametrize(
    ("factor", "is_looked_for"), [(0.5, False), (2.0, True)], ids=["smaller", "larger"]
)
def test_the_smallest_plan_is_looked_for_unless_another_search_has_a_smaller_one(
    factor: float, is_looked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "_SMALL_NODES", 0)
    graph = random_graph(0, 6)
    free = free_answer(prepared(graph, MESH, IntraOptions())).num_bytes
    made = prepared(graph, MESH, IntraOptions(memory_bytes=free // 2))
    with pytest.raises(TooLargeError) as alone:
        planned(made)
    smallest = alone.value.smallest.num_bytes
    assert smallest < free
    with pytest.raises(TooLargeError) as beside:
        planned(made, smallest_bytes=factor * smallest)
    assert beside.value.smallest.num_bytes == (smallest if is_looked_for else free)


@pytest.mark.parametrize(
    ("status", "limit_s", "words"),
    [
        ("time limit", 2.0, "no plan was found in 2 seconds, but there may be one"),
        ("bounded", math.inf, "no plan was found, but there may be one"),
        ("infeasible", 2.0, "no plan satisfies the pins"),
    ],
)
def test_a_search_without_an_answer_is_not_called_a_contradiction(
    status: str, limit_s: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Solution(choice=(), cost=math.inf, bound=-math.inf, status=status)
    monkeypatch.setattr("meshwise.intra.plan_graph.solve", lambda *_, **__: nothing)
    with pytest.raises(InfeasibleError, match=words):
        plan_graph(random_graph(0, 6), MESH, IntraOptions(time_limit_s=limit_s))
