"""A decision that is not a legal program is refused, naming the operator and its source line."""

from __future__ import annotations

import dataclasses
import random

import pytest

from doubles.graph_builders import Builder, mesh, perceptron, random_graph
from doubles.random_decision import random_decision
from meshwise.errors import PlanError
from meshwise.graph.layout import parse_layout
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.verify import verify_decision

MESH = mesh(2, 2)


def use(text, via=None):
    return Use(group=0, via=parse_layout(via or text), layout=parse_layout(text))


def layouts(*texts):
    return tuple(map(parse_layout, texts))


def product_and_decision():
    """w' = x @ w with w' in the place of w."""
    g = Builder()
    x, w = g.input(8, 8, name="x"), g.input(8, 8, name="w")
    graph = g.graph([g.dot(x, w)], aliases=[(1, 0)])
    decision = GraphDecision(
        inputs=layouts("S0 R", "R S1"),
        operators=(
            OperatorDecision(
                strategy=(0, 1), uses=(use("S0 R"), use("R S1")), results=layouts("S0 S1")
            ),
        ),
        outputs=(use("R S1", "S0 S1"),),
    )
    return graph, decision


def changed(decision, **fields):
    """The decision with fields of its operator replaced."""
    operator = dataclasses.replace(decision.operators[0], **fields)
    return dataclasses.replace(decision, operators=(operator,))


WHERE = "dot_general at hand.py:1"

BROKEN = {
    "strategy of another length": (
        lambda d: changed(d, strategy=(0,)),
        f"axes in the strategy of {WHERE}: the plan has 1, the step has 2",
    ),
    "loop that is not there": (
        lambda d: changed(d, strategy=(0, 9)),
        rf"{WHERE}: strategy \(0, 9\) names a loop that is not there",
    ),
    "linear group that is not there": (
        lambda d: changed(d, strategy=(0, -4)),
        rf"{WHERE}: strategy \(0, -4\) names a loop that is not there",
    ),
    "operand in another layout": (
        lambda d: changed(d, uses=(use("S0 R"), use("R R", "R S1"))),
        rf"operand 1 of {WHERE}: the plan has R R, but strategy \(0, 1\) makes it R S1",
    ),
    "result in another layout": (
        lambda d: changed(d, results=layouts("S0 R")),
        f"result 0 of {WHERE}: the plan has S0 R, but strategy",
    ),
    "reduction forgotten": (
        lambda d: changed(
            d,
            strategy=(0, 2),
            uses=(use("S0 S1", "S0 R"), use("S1 R", "R S1")),
            results=layouts("S0 R"),
        ),
        f"result 0 of {WHERE}: the plan has S0 R, but strategy .* makes it S0 R sum:P1",
    ),
    "missing use": (
        lambda d: changed(d, uses=(use("S0 R"),)),
        f"operands of {WHERE}: the plan has 1, the step has 2",
    ),
    "missing result": (
        lambda d: changed(d, results=()),
        f"results of {WHERE}: the plan has 0, the step has 1",
    ),
    "body where there is none": (
        lambda d: changed(d, bodies=(d,)),
        f"{WHERE} has no body",
    ),
    "layout of another rank": (
        lambda d: changed(d, uses=(use("S0"), use("R S1"))),
        rf"operand 0 of {WHERE}: S0 is not a layout of shape \(8, 8\)",
    ),
    "axis that is not there": (
        lambda d: changed(d, uses=(use("S0 R", "S7 R"), use("R S1"))),
        f"operand 0 of {WHERE}: S7 R is not a layout",
    ),
    "missing operator": (
        lambda d: dataclasses.replace(d, operators=()),
        "operators: the plan has 0, the step has 1",
    ),
    "missing input": (
        lambda d: dataclasses.replace(d, inputs=layouts("S0 R")),
        "inputs: the plan has 1, the step has 2",
    ),
    "missing output": (
        lambda d: dataclasses.replace(d, outputs=()),
        "outputs: the plan has 0, the step has 1",
    ),
    "partial input": (
        lambda d: dataclasses.replace(d, inputs=layouts("S0 R sum:P1", "R S1")),
        "input 0 enters partial",
    ),
    "partial output": (
        lambda d: dataclasses.replace(d, outputs=(use("S0 R sum:P1"),)),
        "output 0 leaves partial",
    ),
    "state in another layout": (
        lambda d: dataclasses.replace(d, outputs=(use("S0 S1"),)),
        "input 1 enters as R S1, but output 0, which takes its place in the next step, leaves as "
        "S0 S1",
    ),
    "layout out of reach": (
        lambda d: dataclasses.replace(d, outputs=(use("R S1", "S0 R max:P1"),)),
        "output 0: no resharding leads from S0 S1 to S0 R max:P1",
    ),
}


def test_the_decision_that_is_broken_below_is_legal():
    graph, decision = product_and_decision()
    verify_decision(graph, decision, MESH)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_decision_is_refused(name):
    graph, decision = product_and_decision()
    breaks, text = BROKEN[name]
    with pytest.raises(PlanError, match=text):
        verify_decision(graph, breaks(decision), MESH)


def test_uneven_split_is_refused():
    g = Builder()
    graph = g.graph([g.elementwise("max", g.input(6, 8))])
    decision = GraphDecision(
        inputs=layouts("R R"),
        operators=(OperatorDecision(strategy=(0, 0), uses=(use("R R"),), results=layouts("R R")),),
        outputs=(use("R R"),),
    )
    with pytest.raises(PlanError, match=r"max at hand.py:1: strategy \(0, 0\) does not divide"):
        verify_decision(graph, decision, MESH)


def test_use_before_definition_is_refused():
    graph, decision = product_and_decision()
    cyclic = dataclasses.replace(graph.operators[0], inputs=(0, 2))
    broken = dataclasses.replace(graph, operators=(cyclic,))
    with pytest.raises(PlanError, match=f"operand 1 of {WHERE} is used before it is defined"):
        verify_decision(broken, decision, MESH)


def scan_and_decision():
    """Per iteration h <- h + x, y = max(h)."""
    inner = Builder()
    h, x = inner.input(8, 4), inner.input(8, 4)
    total = inner.elementwise("add", h, x)
    body = inner.graph([total, inner.elementwise("max", total)])
    outer = Builder()
    start, xs = outer.input(8, 4), outer.input(3, 8, 4)
    final, ys = outer.scan(body, [start, xs], 0, 1, 3)
    graph = outer.graph([final, ys])
    inner_decision = GraphDecision(
        inputs=layouts("S0 R", "S0 R"),
        operators=(
            OperatorDecision(
                strategy=(0, -1), uses=(use("S0 R"), use("S0 R")), results=layouts("S0 R")
            ),
            OperatorDecision(strategy=(0, -1), uses=(use("S0 R"),), results=layouts("S0 R")),
        ),
        outputs=(use("S0 R"), use("S0 R")),
    )
    decision = GraphDecision(
        inputs=layouts("S0 R", "R S0 R"),
        operators=(
            OperatorDecision(
                strategy=(),
                uses=(use("S0 R"), use("R S0 R")),
                results=layouts("S0 R", "R S0 R"),
                bodies=(inner_decision,),
            ),
        ),
        outputs=(use("S0 R"), use("R S0 R")),
    )
    return graph, decision


def with_body(decision, **fields):
    return changed(
        decision, bodies=(dataclasses.replace(decision.operators[0].bodies[0], **fields),)
    )


def test_scan_is_checked_inside():
    graph, decision = scan_and_decision()
    verify_decision(graph, decision, MESH)
    (body,) = decision.operators[0].bodies
    wrong = dataclasses.replace(body.operators[1], results=layouts("R R"))
    broken = with_body(decision, operators=(body.operators[0], wrong))
    with pytest.raises(PlanError, match=r"max at hand.py:2 inside scan at hand.py:1: .* has R R"):
        verify_decision(graph, broken, MESH)


@pytest.mark.parametrize(
    ("breaks", "text"),
    [
        (lambda d: changed(d, bodies=()), "scan at hand.py:1: the plan has no decision for its b"),
        (
            lambda d: changed(d, uses=(use("R R", "S0 R"), use("R S0 R"))),
            "operand 0 of scan at hand.py:1 enters as R R, but its body wants S0 R",
        ),
        (
            lambda d: changed(d, uses=(use("S0 R"), use("R R S0", "R S0 R"))),
            "operand 1 of scan at hand.py:1 enters as R R S0, but its body wants R S0 R",
        ),
        (
            lambda d: with_body(d, outputs=(use("R S0", "S0 R"), use("S0 R"))),
            "carry 0 of scan at hand.py:1 enters an iteration as S0 R, but leaves it as R S0",
        ),
        (
            lambda d: changed(d, results=layouts("R R", "R S0 R")),
            "result 0 of scan at hand.py:1: the plan has R R, but its body makes it S0 R",
        ),
        (
            lambda d: changed(d, results=layouts("S0 R", "R R R")),
            "result 1 of scan at hand.py:1: the plan has R R R, but its body makes it R S0 R",
        ),
    ],
)
def test_scan_that_does_not_fit_its_body_is_refused(breaks, text):
    graph, decision = scan_and_decision()
    with pytest.raises(PlanError, match=text):
        verify_decision(graph, breaks(decision), MESH)


def test_carry_may_be_partial():
    inner = Builder()
    h = inner.input(8, 4)
    body = inner.graph([inner.elementwise("neg", h)])
    outer = Builder()
    (final,) = outer.scan(body, [outer.input(8, 4)], 0, 1, 3)
    graph = outer.graph([final])
    partial = use("R R sum:P0")
    decision = GraphDecision(
        inputs=layouts("R R"),
        operators=(
            OperatorDecision(
                strategy=(),
                uses=(use("R R sum:P0", "R R"),),
                results=layouts("R R sum:P0"),
                bodies=(
                    GraphDecision(
                        inputs=layouts("R R sum:P0"),
                        operators=(
                            OperatorDecision(
                                strategy=(-2, -1), uses=(partial,), results=layouts("R R sum:P0")
                            ),
                        ),
                        outputs=(partial,),
                    ),
                ),
            ),
        ),
        outputs=(use("R R"),),
    )
    verify_decision(graph, decision, MESH)


@pytest.mark.parametrize("seed", range(30))
def test_random_legal_decisions_pass_and_one_changed_layout_fails(seed):
    rng = random.Random(seed)
    graph = random_graph(seed) if seed % 2 else perceptron(2, 8, 8)
    decision = random_decision(graph, MESH, rng)
    verify_decision(graph, decision, MESH)
    position = rng.randrange(len(graph.operators))
    operator = decision.operators[position]
    (layout,) = operator.results
    other = parse_layout("R R") if layout != parse_layout("R R") else parse_layout("S0 R")
    if len(layout.dims) != 2:
        other = parse_layout("-") if layout.partial else parse_layout("sum:P0")
    operators = list(decision.operators)
    operators[position] = dataclasses.replace(operator, results=(other,))
    with pytest.raises(PlanError, match=r"hand.py|output"):
        verify_decision(graph, dataclasses.replace(decision, operators=tuple(operators)), MESH)


def test_an_operator_is_checked_even_if_an_equal_one_was_right():
    g = Builder()
    x, w = g.input(8, 8, name="x"), g.input(8, 8, name="w")
    graph = g.graph([g.dot(g.dot(x, w), w)])
    first, second = graph.operators
    second = dataclasses.replace(second, rule=first.rule)
    graph = dataclasses.replace(graph, operators=(first, second))
    whole = OperatorDecision(
        strategy=(0, -1), uses=(use("S0 R"), use("R R")), results=layouts("S0 R")
    )
    decision = GraphDecision(
        inputs=layouts("S0 R", "R R"), operators=(whole, whole), outputs=(use("S0 R"),)
    )
    verify_decision(graph, decision, MESH)
    for fields, message in (
        ({"results": layouts("R S0")}, "result 0 of .* has R S0, but strategy"),
        ({"uses": (use("S0 R"), use("S0 R", "R R"))}, "operand 1 of .* has S0 R, but strategy"),
        ({"strategy": (1, -1)}, r"operand 0 of .* but strategy \(1, -1\) makes it"),
        ({"uses": (use("S0 S0"), use("R R"))}, "operand 0 .*: S0 S0 is not a layout of shape"),
    ):
        broken = dataclasses.replace(whole, **fields)
        with pytest.raises(PlanError, match=message):
            verify_decision(graph, dataclasses.replace(decision, operators=(whole, broken)), MESH)
