"""Decisions for `cond` and `while` that are not legal programs are refused, naming the body."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from doubles.graph_builders import Builder, mesh
from meshwise.errors import PlanError
from meshwise.graph.layout import parse_layout
from meshwise.graph.loops import LoopRule
from meshwise.graph.structure import cond_structure, while_structure
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.counts.walk import visits
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.fingerprint import fingerprint
from meshwise.plan.verify import verify_decision

MESH = mesh(2, 2)
WHOLE = LoopRule((), (), ())


def use(layout: str, via: str = "") -> Use:
    return Use(group=0, via=parse_layout(via or layout), layout=parse_layout(layout))


def layouts(*texts: str) -> tuple[Any, ...]:
    return tuple(map(parse_layout, texts))


def one_operator(strategy: Any, before: str, after: str, inputs: Any = None) -> GraphDecision:
    """A body of one operator on one tensor."""
    return GraphDecision(
        inputs=layouts(*(inputs or (before,))),
        operators=(
            OperatorDecision(strategy=strategy, uses=(use(before),), results=layouts(after)),
        ),
        outputs=(use(after),),
    )


def cond() -> tuple[Any, GraphDecision]:
    """max(x) or -x, by a number."""
    branches = []
    for kind in ("max", "neg"):
        inner = Builder()
        branches.append(inner.graph([inner.elementwise(kind, inner.input(8, 4))]))
    outer = Builder()
    number, x = outer.input(), outer.input(8, 4)
    structure = cond_structure(num_operands=2, num_results=1, num_branches=2)
    y = outer.op(
        "cond", (number, x), [(8, 4)], WHOLE, 0, bodies=tuple(branches), structure=structure
    )
    body = one_operator((0, -1), "S0 R", "S0 R")
    decision = GraphDecision(
        inputs=layouts("-", "S0 R"),
        operators=(
            OperatorDecision(
                strategy=(),
                uses=(use("-"), use("S0 R")),
                results=layouts("S0 R"),
                bodies=(body, body),
            ),
        ),
        outputs=(use("S0 R"),),
    )
    return outer.graph([y]), decision


def loop(trips: int | None = None) -> tuple[Any, GraphDecision]:
    """x <- -x while the sum of x says so."""
    test = Builder()
    predicate = test.graph([test.reduce(test.input(8, 4), 0, 1)])
    inner = Builder()
    body = inner.graph([inner.elementwise("neg", inner.input(8, 4))])
    outer = Builder()
    structure = while_structure(num_predicate_consts=0, num_body_consts=0, num_carry=1, trips=trips)
    y = outer.op(
        "while",
        (outer.input(8, 4),),
        [(8, 4)],
        WHOLE,
        0,
        bodies=(predicate, body),
        structure=structure,
    )
    reduced = GraphDecision(
        inputs=layouts("S0 R"),
        operators=(
            OperatorDecision(strategy=(0, -1), uses=(use("S0 R"),), results=layouts("sum:P0")),
        ),
        outputs=(use("-", "sum:P0"),),
    )
    decision = GraphDecision(
        inputs=layouts("S0 R"),
        operators=(
            OperatorDecision(
                strategy=(),
                uses=(use("S0 R"),),
                results=layouts("S0 R"),
                bodies=(reduced, one_operator((0, -1), "S0 R", "S0 R")),
            ),
        ),
        outputs=(use("S0 R"),),
    )
    return outer.graph([y]), decision


def changed(decision: GraphDecision, **fields: Any) -> GraphDecision:
    (operator,) = decision.operators
    return dataclasses.replace(decision, operators=(dataclasses.replace(operator, **fields),))


def with_body(decision: GraphDecision, number: int, body: GraphDecision) -> GraphDecision:
    bodies = list(decision.operators[0].bodies)
    bodies[number] = body
    return changed(decision, bodies=tuple(bodies))


def leaving(decision: GraphDecision, number: int, out: Use) -> GraphDecision:
    body = decision.operators[0].bodies[number]
    return with_body(decision, number, dataclasses.replace(body, outputs=(out,)))


@pytest.mark.parametrize("make", [cond, loop])
def test_legal_decisions_pass(make):
    graph, decision = make()
    verify_decision(graph, decision, MESH)


@pytest.mark.parametrize(
    ("make", "breaks", "text"),
    [
        (cond, lambda d: changed(d, bodies=()), "cond at hand.py:1: the plan has no decision"),
        (
            cond,
            lambda d: changed(d, bodies=d.operators[0].bodies[:1]),
            "bodies of cond at hand.py:1: the plan has 1, the step has 2",
        ),
        (
            cond,
            lambda d: with_body(d, 1, one_operator((-1, 0), "S1 R", "S1 R")),
            "operand 1 of branch 1 of cond at hand.py:1 enters as S0 R, but its body wants S1 R",
        ),
        (
            cond,
            lambda d: leaving(d, 1, use("R R", "S0 R")),
            "result 0 of branch 1 of cond at hand.py:1: the plan has S0 R, but its body makes it R",
        ),
        (
            cond,
            lambda d: with_body(d, 0, one_operator((-1, -1), "S0 R", "S0 R")),
            "max at hand.py:1 inside branch 0 of cond at hand.py:1: the plan has S0 R, but strat",
        ),
        (
            cond,
            lambda d: changed(d, uses=(use("sum:P0", "-"), use("S0 R"))),
            "operand 0 of cond at hand.py:1 says which branch runs and must be whole",
        ),
        (
            loop,
            lambda d: leaving(d, 0, use("sum:P0")),
            "the predicate of while at hand.py:1 leaves it as sum:P0, but it must be whole",
        ),
        (
            loop,
            lambda d: leaving(d, 1, use("R S0", "S0 R")),
            "carry 0 of while at hand.py:1 enters an iteration as S0 R, but leaves it as R S0",
        ),
        (
            loop,
            lambda d: changed(d, results=layouts("R S0")),
            "result 0 of while at hand.py:1: the plan has R S0, but its body makes it S0 R",
        ),
    ],
)
def test_wrong_bodies_are_refused(make, breaks, text):
    graph, decision = make()
    with pytest.raises(PlanError, match=text):
        verify_decision(graph, breaks(decision), MESH)


def test_a_predicate_is_asked_once_more_than_the_body_runs():
    graph, decision = loop(5)
    assert [(v.operator.kind, v.times) for v in visits(graph, decision)] == [
        ("while", 1),
        ("reduce_sum", 6),
        ("neg", 5),
    ]
    (found,) = collectives(graph, decision, MESH)
    assert (found.kind, found.num_bytes, found.count) == ("all-reduce", 4, 6)


def test_a_loop_of_unknown_length_counts_as_one_trip():
    graph, decision = loop()
    assert [v.times for v in visits(graph, decision)] == [1, 2, 1]


def test_every_branch_counts_once():
    graph, decision = cond()
    assert [(v.operator.kind, v.times) for v in visits(graph, decision)] == [
        ("cond", 1),
        ("max", 1),
        ("neg", 1),
    ]


def test_plans_of_other_structures_are_other_plans():
    found = {fingerprint(graph) for graph, _ in (cond(), loop(), loop(1), loop(2))}
    # A loop of one trip and one of unknown length take the same plan.
    assert len(found) == 3


def test_operands_that_go_are_renumbered():
    structure = while_structure(
        num_predicate_consts=1, num_body_consts=2, num_carry=1, trips=3
    ).keeping((0, 2, 3))
    assert [part.operands for part in structure.parts] == [(0, 2), (1, 2)]
    assert structure.carries == ((2, 0),)
    assert structure.carried_result(2) == 0
    assert structure.carry_inputs(1) == (1,)
    assert structure.carry_inputs(0) == ()
