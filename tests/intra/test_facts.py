"""Closed-form answers of docs/facts.md section 7, under the paper's objective, on all meshes."""

from __future__ import annotations

from collections import Counter

import pytest

from doubles.graph_builders import mesh, perceptron
from meshwise.intra.options import ALPA, IntraOptions, Restriction
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.price import step_time_s
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.verify import verify_decision

ALPA_FORBIDS = Restriction(forbid=frozenset(("all-gather", "all-to-all")))


def communication(graph, decision, on):
    found = Counter()
    for c in collectives(graph, decision, on):
        found[c.kind, c.axes, c.num_bytes] += c.count
    return dict(found)


def planned(layers, batch, width, on, restriction=ALPA_FORBIDS):
    graph = perceptron(layers, batch, width, loss=False)
    result = plan_graph(graph, on, IntraOptions(objective=ALPA, restriction=restriction))
    verify_decision(graph, result.decision, on)
    assert result.status == "optimal"
    assert result.gap == 0.0
    price = step_time_s(graph, result.decision, on, objective=ALPA)
    assert price == pytest.approx(result.objective_s, rel=1e-12)
    return communication(graph, result.decision, on), result.objective_s


def test_two_layers_of_a_large_batch_are_data_parallel():
    found, _ = planned(2, 1024, 128, mesh(4))
    assert found == {("all-reduce", ("x",), 128 * 128 * 4): 2}


def test_two_wide_layers_are_split_by_column_then_row():
    found, _ = planned(2, 128, 1024, mesh(4))
    assert found == {("all-reduce", ("x",), 128 * 1024 * 4): 1}


def test_twelve_wide_layers_alternate_columns_and_rows():
    found, _ = planned(12, 128, 1024, mesh(4))
    assert found == {("all-reduce", ("x",), 128 * 1024 * 4): 11}


@pytest.mark.parametrize("layers", [2, 12])
@pytest.mark.parametrize(("sizes", "batch", "width"), [((4, 8), 512, 128), ((3, 4), 432, 144)])
def test_two_axes_mix_data_and_tensor_parallel(layers, sizes, batch, width):
    found, _ = planned(layers, batch, width, mesh(*sizes, bandwidths=(1.0, 100.0)))
    slow, fast = sizes
    assert found == {
        ("all-reduce", ("x",), width * width * 4 // fast): layers,
        ("all-reduce", ("y",), batch * width * 4 // slow): layers - 1,
    }


@pytest.mark.parametrize(
    ("layers", "batch", "width", "sizes", "bandwidths"),
    [
        (2, 1024, 128, (4,), (1.0,)),
        (2, 128, 1024, (4,), (1.0,)),
        (12, 128, 1024, (4,), (1.0,)),
        (2, 512, 128, (4, 8), (1.0, 100.0)),
        (12, 512, 128, (4, 8), (1.0, 100.0)),
        (2, 432, 144, (3, 4), (1.0, 100.0)),
        (12, 432, 144, (3, 4), (1.0, 100.0)),
    ],
)
def test_more_collectives_never_cost_more(layers, batch, width, sizes, bandwidths):
    on = mesh(*sizes, bandwidths=bandwidths)
    _, few = planned(layers, batch, width, on)
    _, all_allowed = planned(layers, batch, width, on, Restriction())
    assert all_allowed <= few * (1 + 1e-12)


def test_the_first_axis_may_be_the_fast_one():
    found, _ = planned(2, 512, 128, mesh(8, 4, bandwidths=(100.0, 1.0)))
    assert found == {
        ("all-reduce", ("y",), 128 * 128 * 4 // 8): 2,
        ("all-reduce", ("x",), 512 * 128 * 4 // 4): 1,
    }
