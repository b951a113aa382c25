"""What a plan keeps of its graph."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from doubles.graph_builders import Builder, mesh, perceptron, random_graph
from doubles.random_decision import random_decision
from meshwise.graph.layout import Layout, parse_layout
from meshwise.plan.counts.contents import Argument, DenseOperator, arguments, dense_operators
from meshwise.plan.counts.flop import device_flop
from meshwise.plan.counts.shares import Communication, communication
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use

MESH = mesh(2, 2)


def test_arguments_are_the_inputs_in_order():
    g = Builder(itemsize=2)
    g.input(4, 6, name="0/w")
    g.input(name="1/step")
    split, whole = parse_layout("S0 R"), Layout(())
    decision = GraphDecision(inputs=(split, whole), operators=(), outputs=())
    assert arguments(g.graph([]), decision, Communication()) == (
        Argument(name="0/w", shape=(4, 6), dtype="bfloat16", itemsize=2, layout=split),
        Argument(name="1/step", shape=(), dtype="bfloat16", itemsize=2, layout=whole),
    )


def chain(places, layouts):
    """Products of one activation with a weight each, at the given source lines."""
    g = Builder()
    h = g.input(8, 8)
    for _ in places:
        h = g.dot(h, g.input(8, 8))
    graph = g.graph([h])
    operators = []
    for a, b, result, strategy in layouts:
        operands = [parse_layout(text) for text in (a, b)]
        operators.append(
            OperatorDecision(
                strategy=strategy,
                uses=tuple(Use(group=0, via=lay, layout=lay) for lay in operands),
                results=(parse_layout(result),),
            )
        )
    whole = parse_layout("R R")
    decision = GraphDecision(
        inputs=(whole,) * (len(places) + 1),
        operators=tuple(operators),
        outputs=(Use(group=0, via=whole, layout=whole),),
    )
    located = tuple(
        dataclasses.replace(op, where=where)
        for op, where in zip(graph.operators, places, strict=True)
    )
    return dataclasses.replace(graph, operators=located), decision


ROWS = ("S01 R", "R R", "S01 R", (0, 0))
COLUMNS = ("S0 R", "R S1", "S0 S1", (0, 1))


def test_equal_operators_are_merged_and_others_are_not():
    graph, decision = chain(["a.py:1", "a.py:1", "a.py:2", "a.py:1"], [ROWS, COLUMNS, ROWS, ROWS])
    found = dense_operators(graph, decision, MESH, communication(graph, decision, MESH))
    each = 2 * 8**3 / 4
    assert [(d.where, str(d.results[0]), d.count, d.device_flop) for d in found] == [
        ("dot_general at a.py:1", "S01 R", 2, 2 * each),
        ("dot_general at a.py:1", "S0 S1", 1, each),
        ("dot_general at a.py:2", "S01 R", 1, each),
    ]
    assert found[1].operands == (parse_layout("S0 R"), parse_layout("R S1"))


def test_trip_counts_of_scans_are_in_count_and_flop():
    inner = Builder()
    h, w = inner.input(8, 8), inner.input(8, 8)
    body = inner.graph([inner.dot(h, w)])
    outer = Builder()
    (final,) = outer.scan(body, [outer.input(8, 8), outer.input(3, 8, 8)], 0, 1, 3)
    whole, stacked = parse_layout("R R"), parse_layout("R R R")

    def use(layout):
        return Use(group=0, via=layout, layout=layout)

    product = OperatorDecision(strategy=(-1, -1), uses=(use(whole),) * 2, results=(whole,))
    inside = GraphDecision(inputs=(whole, whole), operators=(product,), outputs=(use(whole),))
    scan = OperatorDecision(
        strategy=(), uses=(use(whole), use(stacked)), results=(whole,), bodies=(inside,)
    )
    decision = GraphDecision(inputs=(whole, stacked), operators=(scan,), outputs=(use(whole),))
    graph, device = outer.graph([final]), MESH.device
    moves = communication(graph, decision, MESH)
    assert dense_operators(graph, decision, MESH, moves) == (
        DenseOperator(
            where="dot_general at hand.py:1",
            operands=(whole, whole),
            results=(whole,),
            count=3,
            device_flop=3 * 2 * 8.0**3,
            compute_s=3 * 2 * 8.0**3 / device.rate(graph.tensors[0].dtype),
            memory_s=3 * 3 * graph.tensors[0].num_bytes / device.memory_bytes_per_s,
        ),
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_sum_is_the_flop_of_the_device(seed):
    graph = random_graph(seed) if seed % 2 else perceptron(3, 8, 8)
    decision = random_decision(graph, MESH, random.Random(seed))
    found = dense_operators(graph, decision, MESH, communication(graph, decision, MESH))
    total = math.fsum(d.device_flop for d in found)
    assert total == pytest.approx(device_flop(graph, decision, MESH), rel=1e-12)
    assert sum(d.count for d in found) == sum(op.heavy for op in graph.operators)
