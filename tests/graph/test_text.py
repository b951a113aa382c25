"""Graphs print and read back; a difference names what was put in, not what was renumbered."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.model_configs import CONFIGS
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.few import few
from doubles.graph_builders import Builder, perceptron, random_graph
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import MONOIDS
from meshwise.graph.loops import PARALLEL, Loop, LoopRule
from meshwise.graph.sent import Halo
from meshwise.graph.structure import BodyPart, Structure
from meshwise.graph.text import graph_difference, graph_text, parse_graph
from meshwise.models.steps import model_step
from oracle.one_device import traced

NUMBER = st.integers(0, 10**6)
NUMBERS = st.lists(NUMBER, max_size=3).map(tuple)
DIMS = st.lists(NUMBERS, max_size=3).map(tuple)
LOOPS = st.builds(Loop, NUMBER, st.sampled_from((PARALLEL, *MONOIDS)), st.booleans())
HALOS = st.builds(Halo, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, st.sampled_from(MONOIDS))
RULES = st.builds(
    LoopRule,
    loops=st.lists(LOOPS, max_size=3).map(tuple),
    operands=st.lists(DIMS, max_size=3).map(tuple),
    results=st.lists(DIMS, max_size=2).map(tuple),
    linear=DIMS,
    whole=st.text(max_size=5),
    ruled=st.booleans(),
    halos=st.lists(HALOS, max_size=2).map(tuple),
)
SETS = st.frozensets(NUMBER, max_size=3)
PARTS = st.builds(BodyPart, operands=NUMBERS, results=NUMBERS, trips=NUMBER)
STRUCTURES = st.builds(
    Structure,
    kind=st.sampled_from(("scan", "cond", "while")),
    parts=st.lists(PARTS, max_size=2).map(tuple),
    carries=st.lists(st.tuples(NUMBER, NUMBER), max_size=2).map(tuple),
    stacked_operands=SETS,
    stacked_results=SETS,
    whole_operands=SETS,
    length=NUMBER,
    reverse=st.booleans(),
    is_counted=st.booleans(),
)
TENSORS = st.builds(
    Tensor,
    shape=NUMBERS,
    dtype=st.sampled_from(("float32", "bool", "int4", "key<fry>")),
    itemsize=st.integers(1, 16),
    name=st.text(max_size=8),
    generated=st.booleans(),
    sharers=st.integers(0, 9),
)


@st.composite
def graphs(draw: st.DrawFn, depth: int = 1) -> Graph:
    """Any graph whose operators make each tensor at most once, whatever it means."""
    tensors = draw(st.lists(TENSORS, max_size=6).map(tuple))
    ids = (
        st.lists(st.integers(0, len(tensors) - 1), max_size=3).map(tuple)
        if tensors
        else st.just(())
    )
    operators: list[Operator] = []
    left = list(range(len(tensors)))
    while left and draw(st.booleans()):
        count = draw(st.integers(0, len(left)))
        bodies = draw(st.lists(graphs(depth - 1), max_size=2)) if depth else []
        operators.append(
            Operator(
                kind=draw(st.sampled_from(("dot_general", "scatter-add", "while"))),
                inputs=draw(ids),
                outputs=tuple(left[:count]),
                rule=draw(RULES),
                flop=draw(st.floats(allow_nan=False)),
                heavy=draw(st.booleans()),
                where=draw(st.text(max_size=8)),
                bodies=tuple(bodies),
                structure=draw(st.none() | STRUCTURES),
                detail=draw(st.text(max_size=8)),
                apart=draw(st.booleans()),
                dim_orders=draw(DIMS),
            )
        )
        left = left[count:]
    return Graph(
        tensors=tensors,
        operators=tuple(operators),
        inputs=draw(ids),
        outputs=draw(ids),
        aliases=draw(st.lists(st.tuples(NUMBER, NUMBER), max_size=2).map(tuple)),
    )


@settings(max_examples=40)
@given(graphs())
def test_a_graph_reads_back(graph: Graph) -> None:
    assert parse_graph(graph_text(graph)) == graph


@pytest.mark.parametrize("name", few(CONFIGS, set(CONFIGS) - {"u-transformer"}))
def test_the_graph_of_a_model_reads_back(name: str) -> None:
    step, state, batch = model_step(*CONFIGS[name]).abstract
    graph = traced(step, state, batch, b=2 if name == "bert" else 1).graph
    text = graph_text(graph)
    assert parse_graph(text) == graph
    assert len(text.splitlines()) >= len(graph.operators) + len(graph.inputs) + 2


def test_a_graph_reads_as_its_golden_file(golden) -> None:
    golden("graphs/perceptron.txt", graph_text(perceptron(2, 8, 4)))


def test_an_operator_is_one_line_that_can_be_read() -> None:
    assert graph_text(perceptron(1, 8, 4)).splitlines()[4] == (
        '%3 float32[8,4] = dot_general(%1, %0) {"flop": 256.0, "heavy": true, "where": '
        '"hand.py:1", "detail": "(1, 0)", "loops": "8 4 sum:4", "linear": [[0], [1]], '
        '"dims": "0 2, 2 1 -> 0 1"}'
    )


def test_a_difference_names_only_what_was_put_in() -> None:
    def chain(names: list[str]) -> Graph:
        g = Builder()
        value = g.input(4, 4, name="x")
        for name in names:
            value = g.elementwise(name, value)
        graph = g.graph([value])
        plain = [dataclasses.replace(operator, where="") for operator in graph.operators]
        return dataclasses.replace(graph, operators=tuple(plain))

    before, after = (
        chain(["neg", "exp", "sin", "tanh"]),
        chain(["neg", "log", "exp", "sin", "tanh"]),
    )
    lines = graph_difference(before, after).splitlines()[3:]
    changes = [line.split(" {")[0] for line in lines if line[0] in "+-"]
    assert changes == [
        "-%2 float32[4,4] = exp(%1)",
        "+%+2 float32[4,4] = log(%1)",
        "+%2 float32[4,4] = exp(%+2)",
    ]
    assert graph_difference(before, before) == ""


@pytest.mark.parametrize("seed", range(4))
def test_a_difference_says_whether_graphs_are_equal(seed: int) -> None:
    one, other = random_graph(seed), random_graph(seed + 4)
    assert (graph_difference(one, other) == "") == (one == other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 of the graph: not understood: its end"),
        ("inputs %0\noutputs %0\nmore\n", "line 3 of the graph: not understood: 'more'"),
        ("inputs \n%0 float32[4] = neg %1\noutputs \n", "line 2 of the graph"),
        ("inputs \n%1 float32[4]\noutputs \n", "nothing of some tensors below %1"),
    ],
)
def test_what_is_no_graph_is_told_by_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_graph(text)
