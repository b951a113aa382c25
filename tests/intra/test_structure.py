"""What the network can say: one reduction of a sum, scans, shared copies, equal layers."""

from __future__ import annotations

import random

import pytest

from doubles.graph_builders import Builder, mesh, perceptron, random_graph
from meshwise.assignment.problem import row_weight
from meshwise.graph.layout import Layout
from meshwise.intra.expand import expand
from meshwise.intra.limit.memory_rows import MemoryRows
from meshwise.intra.network import build_network
from meshwise.intra.options import IntraOptions
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.price import step_time_s
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.verify import verify_decision
from oracle.memory_profile import profile_peak

ONE_AXIS = mesh(4, bandwidths=(1e9,))
SPLIT_COLUMNS = Layout(((), (0,)))
SPLIT_ROWS = Layout(((0,), ()))


def plan(graph, on=ONE_AXIS, pins=None, **options):
    layouts = {i: (layout,) for i, layout in (pins or {}).items()}
    result = plan_graph(graph, on, IntraOptions(layouts=layouts, **options))
    verify_decision(graph, result.decision, on)
    price = step_time_s(graph, result.decision, on)
    assert price == pytest.approx(result.objective_s, rel=1e-9)
    return result, collectives(graph, result.decision, on)


def test_partial_products_are_added_before_one_reduction():
    g = Builder()
    xs = [g.input(2048, 2048) for _ in range(3)]
    ws = [g.input(2048, 2048) for _ in range(3)]
    terms = [g.dot(x, w) for x, w in zip(xs, ws, strict=True)]
    out = g.elementwise("max", g.elementwise("add", g.elementwise("add", *terms[:2]), terms[2]))
    pins = {i: SPLIT_COLUMNS if i < 3 else SPLIT_ROWS for i in range(6)}
    _, found = plan(g.graph([out]), pins=pins)
    assert sum(c.kind in ("all-reduce", "reduce-scatter") for c in found) == 1


def test_partial_products_are_added_through_linear_views():
    g = Builder()
    xs = [g.input(2048, 2048) for _ in range(2)]
    ws = [g.input(2048, 2048) for _ in range(2)]
    terms = [g.transpose(g.dot(x, w)) for x, w in zip(xs, ws, strict=True)]
    out = g.elementwise("max", g.elementwise("add", *terms))
    pins = {i: SPLIT_COLUMNS if i < 2 else SPLIT_ROWS for i in range(4)}
    _, found = plan(g.graph([out]), pins=pins)
    assert sum(c.kind in ("all-reduce", "reduce-scatter") for c in found) == 1


def test_views_and_sums_of_products_are_one_kernel():
    alone = mesh(1)

    def seconds(add):
        g = Builder()
        terms = [g.dot(g.input(512, 512), g.input(512, 512)) for _ in range(3)]
        outs = terms
        if add:
            one, other, last = map(g.transpose, terms)
            outs = [g.elementwise("add", g.elementwise("add", one, other), last)]
        result, _ = plan(g.graph(outs), alone)
        return result.objective_s

    # What stands between them is in no memory: three products are read and the sum is written.
    moved_s = 4 * 512 * 512 * 4 / alone.device.memory_bytes_per_s
    assert seconds(add=True) - seconds(add=False) == pytest.approx(moved_s, rel=0.05)


@pytest.mark.parametrize("begins_with_zero", [True, False])
def test_the_norm_of_many_tensors_is_one_reduction(begins_with_zero):
    # As optax.global_norm writes it: `sum` begins with 0.
    g = Builder()
    xs = [g.input(1024, 1024) for _ in range(4)]
    squares = [g.elementwise("mul", x, x) for x in xs]
    terms = [g.reduce(s, 0, 1) for s in squares]
    total = g.zeros() if begins_with_zero else terms.pop(0)
    for term in terms:
        total = g.elementwise("add", total, term)
    norm = g.elementwise("sqrt", total)
    scaled = [g.elementwise("mul", x, g.broadcast(norm, (1024, 1024), ())) for x in xs]
    on = mesh(4, bandwidths=(1e9,), latency_s=1e-5)
    _, found = plan(g.graph(scaled), on, pins={i: SPLIT_ROWS for i in range(4)})
    assert [(c.kind, c.num_bytes, c.count) for c in found] == [("all-reduce", 4, 1)]


def accumulating_scan():
    """acc + x[i]^T y[i] over 8 steps, x and y split over rows."""
    body = Builder()
    acc, x, y = body.input(512, 512), body.input(1024, 512), body.input(1024, 512)
    total = body.elementwise("add", acc, body.dot(x, y, contract=(0, 0)))
    inner = body.graph([total])
    g = Builder()
    start, xs, ys = g.input(512, 512), g.input(8, 1024, 512), g.input(8, 1024, 512)
    (out,) = g.scan(inner, (start, xs, ys), 0, 1, 8)
    return g.graph([g.elementwise("max", out)])


def test_an_accumulator_is_reduced_once_after_the_loop():
    rows = Layout(((), (0,), ()))
    result, found = plan(accumulating_scan(), pins={1: rows, 2: rows})
    reductions = [c for c in found if c.kind in ("all-reduce", "reduce-scatter")]
    assert [c.count for c in reductions] == [1]
    (body,) = result.decision.operators[0].bodies
    assert body.inputs[0].partial == (0,)


def test_a_loop_invariant_weight_is_gathered_once_if_that_is_cheaper():
    body = Builder()
    w, h = body.input(1024, 1024), body.input(8192, 1024)
    inner = body.graph([body.elementwise("max", body.dot(h, w))])
    g = Builder()
    weight, start = g.input(1024, 1024), g.input(8192, 1024)
    (out,) = g.scan(inner, (weight, start), 1, 1, 16)
    graph = g.graph([out])
    fast = mesh(4, bandwidths=(100e9,))
    result, found = plan(graph, fast, pins={0: SPLIT_ROWS, 1: SPLIT_ROWS})
    assert [(c.kind, c.count) for c in found] == [("all-gather", 1)]
    assert result.decision.operators[0].uses[0].layout == Layout(((), ()))


def test_one_copy_serves_neighbours():
    # x is split over rows, but three products with replicated weights want it whole along k.
    g = Builder()
    x = g.input(4096, 4096)
    ws = [g.input(4096, 4096) for _ in range(3)]
    outs = [g.dot(x, w) for w in ws]
    pins = {0: SPLIT_ROWS, **{i + 1: SPLIT_COLUMNS for i in range(3)}}
    _, found = plan(g.graph(outs), mesh(4, bandwidths=(100e9,)), pins=pins)
    assert [c.kind for c in found] == ["all-gather"]


def test_pins_are_kept_and_results_are_whole_values():
    graph = perceptron(2, 256, 64)
    result, _ = plan(graph, pins={0: SPLIT_ROWS})
    assert result.decision.inputs[0] == SPLIT_ROWS
    assert result.decision.outputs[0].layout == SPLIT_ROWS
    assert not any(use.layout.partial for use in result.decision.outputs)


@pytest.mark.parametrize("sizes", [(8,), (2, 4)])
def test_equal_layers_planned_equally_are_nearly_as_good(sizes, monkeypatch):
    # Rows outweigh weights, so equal layers want equal plans and tying loses only at the ends.
    graph = perceptron(8, 8192, 128, momentum=True)
    on = mesh(*sizes, bandwidths=(10e9, 30e9)[: len(sizes)])
    monkeypatch.setattr("meshwise.intra.plan_graph._TIE_NODES", 10**9)
    free = plan_graph(graph, on, IntraOptions())
    monkeypatch.setattr("meshwise.intra.plan_graph._TIE_NODES", 0)
    tied = plan_graph(graph, on, IntraOptions())
    verify_decision(graph, tied.decision, on)
    assert free.space == "every layer planned freely"
    assert tied.space == "equal layers planned equally (the first and last may differ)"
    assert free.objective_s <= tied.objective_s * (1 + 1e-9)
    assert tied.objective_s <= free.objective_s * 1.02


@pytest.mark.parametrize("seed", range(12))
def test_rows_say_what_the_profile_says(seed):
    graph = random_graph(seed)
    on = mesh(2, 2, bandwidths=(1e6, 3e6)) if seed % 2 else mesh(4, bandwidths=(1e6,))
    network = build_network(graph, on, IntraOptions())
    rows = MemoryRows(network)
    rng = random.Random(seed)
    same = 0
    for _ in range(20):
        choice = tuple(rng.randrange(len(n.cost_s)) for n in network.nodes)
        high = profile_peak(graph, expand(network, choice), on)
        weight = row_weight(rows.row_of(high.buffers), choice)
        # Further copies of a tensor, made while the one that is live may be, count too.
        assert high.num_bytes <= weight <= 1.35 * high.num_bytes
        same += weight == high.num_bytes
    assert same >= 4
