"""Which collectives a decision costs, by hand on small graphs."""

from __future__ import annotations

import random

import pytest

from doubles.graph_builders import Builder, mesh, perceptron
from doubles.random_decision import random_decision
from meshwise.graph.layout import parse_layout
from meshwise.graph.loops import NONE, Loop, LoopRule
from meshwise.plan.counts.collectives import collective_s, collectives
from meshwise.plan.counts.flop import device_flop, replicated_work, strategy_parts
from meshwise.plan.counts.walk import reshards, visits
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.verify import verify_decision

MESH = mesh(2, 4, latency_s=1e-6)


def use(text, via=None, group=0):
    return Use(group=group, via=parse_layout(via or text), layout=parse_layout(text))


def layouts(*texts):
    return tuple(map(parse_layout, texts))


def operator(strategy, uses, results, *bodies):
    return OperatorDecision(
        strategy=strategy,
        uses=tuple(use(u) if isinstance(u, str) else u for u in uses),
        results=layouts(*results),
        bodies=bodies,
    )


def records(graph, decision, on=MESH):
    verify_decision(graph, decision, on)
    return [
        (c.kind, c.axes, c.group_size, c.num_bytes, c.count)
        for c in collectives(graph, decision, on)
    ]


def product():
    """z[8,16] = x[8,4] @ y[4,16]."""
    g = Builder()
    x, y = g.input(8, 4), g.input(4, 16)
    return g.graph([g.dot(x, y)])


def test_partial_result_costs_one_all_reduce():
    graph = product()
    # Loops of `Builder.dot`: rows, columns, inner.
    decision = GraphDecision(
        inputs=layouts("S0 S1", "S1 R"),
        operators=(operator((0, 2), ("S0 S1", "S1 R"), ("S0 R sum:P1",)),),
        outputs=(use("S0 R"),),
    )
    assert records(graph, decision) == [("all-reduce", ("y",), 4, 8 * 16 * 4 // 2, 1)]
    (found,) = collectives(graph, decision, MESH)
    assert found.where == "dot_general at hand.py:1 -> output 0"
    assert found.stage == 0
    assert collective_s(found, MESH) == pytest.approx(6e-6 + 1.5 * 256)


def test_where_names_the_operator_that_wants_the_layout():
    graph = product()
    decision = GraphDecision(
        inputs=layouts("S0 R", "S1 R"),
        operators=(operator((0, NONE), ("S0 R", "R R"), ("S0 R",)),),
        outputs=(use("S0 R"),),
    )
    (found,) = collectives(graph, decision, MESH)
    assert (found.kind, found.where) == ("all-gather", "dot_general at hand.py:1")


def three_users():
    g = Builder()
    x = g.input(8, 8)
    return g.graph([g.elementwise("add", g.elementwise("max", x), g.elementwise("exp", x))])


def with_uses(first, second):
    return GraphDecision(
        inputs=layouts("S0 R"),
        operators=(
            operator((NONE,), (first,), ("R R",)),
            operator((NONE,), (second,), ("R R",)),
            operator((NONE,), ("R R", "R R"), ("R R",)),
        ),
        outputs=(use("R R"),),
    )


M = 8 * 8 * 4
GATHER = ("all-gather", ("x",), 2, M, 1)


def test_users_of_one_group_share_a_copy():
    home = "S0 R"
    one = use("R R", home)
    assert records(three_users(), with_uses(one, one), mesh(2)) == [GATHER]
    other = use("R R", home, group=1)
    assert records(three_users(), with_uses(one, other), mesh(2)) == [GATHER, GATHER]


def test_shared_copy_is_made_once_and_cut_for_each_user():
    graph, on = three_users(), mesh(2)
    decision = GraphDecision(
        inputs=layouts("S0 R"),
        operators=(
            operator((NONE,), (use("R R", "R R"),), ("R R",)),
            operator((1,), (use("R S0", "R R"),), ("R S0",)),
            operator((1,), (use("R S0", "R R"), "R S0"), ("R S0",)),
        ),
        outputs=(use("R S0"),),
    )
    assert records(graph, decision, on) == [GATHER]
    legs = [(str(r.before), str(r.after)) for some in reshards(graph, decision) for r in some]
    assert legs == [("S0 R", "R R"), ("R R", "R S0"), ("R R", "R S0")]


def test_generated_tensors_cost_nothing():
    g = Builder()
    x = g.input(8, 8)
    zeros = g.zeros(8, 8)
    graph = g.graph([g.elementwise("add", x, zeros)])
    decision = GraphDecision(
        inputs=layouts("R S0"),
        operators=(
            operator((0,), (), ("S0 R",)),
            operator((1,), ("R S0", "R S0"), ("R S0",)),
        ),
        outputs=(use("R S0"),),
    )
    assert records(graph, decision, mesh(2)) == []


def scan_graph(length):
    """h <- max(h) + x_t over rows of xs; h is returned."""
    inner = Builder()
    h, x = inner.input(8, 4), inner.input(8, 4)
    body = inner.graph([inner.elementwise("add", inner.elementwise("max", h), x)])
    outer = Builder()
    start, xs = outer.input(8, 4), outer.input(length, 8, 4)
    (final,) = outer.scan(body, [start, xs], 0, 1, length)
    return outer.graph([final])


def scan_decision(start="S0 R", xs="R R S0", body_xs="R S0"):
    body = GraphDecision(
        inputs=layouts("S0 R", body_xs),
        operators=(
            operator((0,), ("S0 R",), ("S0 R",)),
            operator((0,), ("S0 R", use("S0 R", body_xs)), ("S0 R",)),
        ),
        outputs=(use("S0 R"),),
    )
    return GraphDecision(
        inputs=layouts(start, xs),
        operators=(operator((), ("S0 R", use(f"R {body_xs}", xs)), ("S0 R",), body),),
        outputs=(use("S0 R"),),
    )


def test_body_of_a_scan_counts_once_an_iteration_and_its_operands_once():
    graph = scan_graph(5)
    inside = ("all-to-all", ("x",), 2, 8 * 4 * 4, 5)
    assert records(graph, scan_decision(), mesh(2)) == [inside]
    outside = ("all-to-all", ("x",), 2, 5 * 8 * 4 * 4, 1)
    assert records(graph, scan_decision(body_xs="S0 R"), mesh(2)) == [outside]
    assert [v.times for v in visits(graph, scan_decision())] == [1, 5, 5]


def test_groups_of_one_device_are_no_collectives():
    graph = product()
    decision = GraphDecision(
        inputs=layouts("R S0", "S0 R"),
        operators=(operator((2,), ("R S0", "S0 R"), ("R R sum:P0",)),),
        outputs=(use("R R"),),
    )
    assert records(graph, decision, mesh(1)) == []
    assert len(records(graph, decision, mesh(2))) == 1


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_any_decision_are_those_of_its_reshards(seed):
    graph, on = perceptron(2, 8, 8), mesh(2, 2)
    decision = random_decision(graph, on, random.Random(seed))
    verify_decision(graph, decision, on)
    found = collectives(graph, decision, on)
    assert all(c.num_bytes > 0 and c.group_size in (2, 4) and c.count == 1 for c in found)
    # A tensor is never seen larger than it is.
    largest = max(t.num_bytes for t in graph.tensors)
    assert max((c.num_bytes for c in found), default=0) <= largest


# -- work -----------------------------------------------------------------------------------------


def test_dense_flop_is_divided_by_the_loops_that_are_split():
    graph = product()
    whole = 2 * 8 * 4 * 16
    inputs = layouts("S0 S1", "S1 R")
    chosen = operator((0, 2), ("S0 S1", "S1 R"), ("S0 R sum:P1",))
    decision = GraphDecision(inputs=inputs, operators=(chosen,), outputs=(use("S0 R"),))
    assert device_flop(graph, decision, MESH) == whole / 8
    idle = operator((0, NONE), ("S0 R", "R R"), ("S0 R",))
    decision = GraphDecision(inputs=inputs, operators=(idle,), outputs=(use("S0 R"),))
    assert device_flop(graph, decision, MESH) == whole / 2
    # A partial sum that passes divides nothing: choice -2 is the first linear group.
    assert strategy_parts(graph.operators[0], (0, -2), (2, 4)) == 2


def test_dense_flop_of_a_scan_body_counts_every_iteration():
    inner = Builder()
    h, w = inner.input(8, 8), inner.input(8, 8)
    body = inner.graph([inner.dot(h, w)])
    outer = Builder()
    start, ws = outer.input(8, 8), outer.input(3, 8, 8)
    (final,) = outer.scan(body, [start, ws], 0, 1, 3)
    graph = outer.graph([final])
    inner_decision = GraphDecision(
        inputs=layouts("S0 R", "R R"),
        operators=(operator((0,), ("S0 R", "R R"), ("S0 R",)),),
        outputs=(use("S0 R"),),
    )
    decision = GraphDecision(
        inputs=layouts("S0 R", "R R R"),
        operators=(operator((), ("S0 R", "R R R"), ("S0 R",), inner_decision),),
        outputs=(use("S0 R"),),
    )
    verify_decision(graph, decision, mesh(2))
    assert device_flop(graph, decision, mesh(2)) == 3 * 2 * 8**3 / 2


def test_elementwise_work_is_not_dense():
    graph = three_users()
    one = use("R R", "S0 R")
    assert device_flop(graph, with_uses(one, one), mesh(2)) == 0.0


def test_share_that_runs_replicated():
    g = Builder()
    x = g.input(8, 8)
    y = g.elementwise("max", x)
    graph = g.graph([g.elementwise("exp", y), g.zeros(8, 8)])
    decision = GraphDecision(
        inputs=layouts("S0 R"),
        operators=(
            operator((0,), ("S0 R",), ("S0 R",)),
            operator((NONE,), (use("R R", "S0 R"),), ("R R",)),
            operator((NONE,), (), ("R R",)),
        ),
        outputs=(use("R R"), use("R R")),
    )
    found = replicated_work(graph, decision, mesh(2)).shares()
    assert (found.flop_share, found.bytes_share) == (0.5, 0.5)
    assert found.largest == (("exp at hand.py:2", 2 * M),)
    # On one device nothing is done twice.
    alone = replicated_work(graph, decision, mesh(1)).shares()
    assert (alone.flop_share, alone.bytes_share, alone.largest) == (0.0, 0.0, ())


def test_a_sum_that_passes_is_not_replicated_work():
    rule = LoopRule((Loop(8),), (((0,),),) * 2, (((0,),),), linear=((0, 1),))
    g = Builder()
    x = g.input(8)
    y = g.op("add", (x, x), [(8,)], rule, 8)
    graph = g.graph([y])
    decision = GraphDecision(
        inputs=layouts("R"),
        operators=(operator((-2,), (use("R sum:P0", "R"),) * 2, ("R sum:P0",)),),
        outputs=(use("R"),),
    )
    verify_decision(graph, decision, mesh(2))
    assert replicated_work(graph, decision, mesh(2)).shares().flop_share == 0.0


def test_random_decisions_split_some_work():
    graph, on = perceptron(2, 8, 8), mesh(2, 2)
    for seed in range(10):
        decision = random_decision(graph, on, random.Random(seed))
        whole = sum(op.flop for op in graph.operators if op.heavy)
        assert whole / 4 <= device_flop(graph, decision, on) <= whole
