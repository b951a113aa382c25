"""Layers planned as methods do: what they communicate, and that the free layer is never dearer."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from doubles.few import few
from doubles.graph_builders import mesh
from doubles.layered import gpt_layers, moe_layers, perceptron_layers
from meshwise.baselines.pipelines.layer_costs import MethodCosts
from meshwise.baselines.pipelines.layer_methods import INTRA_OP, RESTRICTIONS, restricted_layer
from meshwise.baselines.roles import OPTIMIZER, PARAMETER, input_info
from meshwise.errors import PlanError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.intra.options import IntraOptions
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.verify import verify_decision

ONE_AXIS = mesh(4, bandwidths=(10e9,))
TWO_AXES = mesh(2, 4, bandwidths=(1e9, 30e9))
ROWS, B = 32, 2
# Rows, width and inner width of perceptrons.
SIZES = ((64, 64, 256), (512, 32, 64), (16, 128, 512), (64, 96, 40))
FREE = BytePrice()


@pytest.fixture(scope="module")
def gpt():
    return gpt_layers(ROWS)


def planned(method, piece, on, price=FREE):
    """A layer's network, and its best plan over all states of its cuts."""
    network = restricted_layer(method, piece, on, IntraOptions())
    layer = ConditionedLayer(network, price)
    found = [layer.entry(*map(int, at)) for at in np.argwhere(np.isfinite(layer.bound_s))]
    best = min((e for e in found if e is not None), key=lambda e: e.cost_s)
    verify_decision(piece.graph, best.decision, on)
    return layer, best


def communicated(piece, decision, on, at_least):
    found = Counter()
    for c in collectives(piece.graph, decision, on):
        if c.num_bytes >= at_least:
            found[c.kind, c.axes, c.num_bytes] += c.count
    return found


def weights_of(piece):
    """Bytes of the parameters that are matrices."""
    info = input_info(piece.graph, piece.batch_dims, [c.value for c in piece.leaving])
    tensors = [piece.graph.tensors[t] for t in piece.graph.inputs]
    return [
        t.num_bytes
        for t, role in zip(tensors, info.roles, strict=True)
        if role == PARAMETER and t.num_bytes >= 4096
    ]


def test_roles_in_a_piece(gpt):
    piece = gpt.graph(1, 1, B)
    info = input_info(piece.graph, piece.batch_dims, [c.value for c in piece.leaving])
    # 16 tensors of a block, biases before the cut among them; two moments of each and a counter.
    assert Counter(info.roles)[PARAMETER] == 16
    assert Counter(info.roles)[OPTIMIZER] >= 32


def test_megatron_reduces_two_activations_forward_and_two_backward(gpt):
    piece = gpt.graph(1, 1, B)
    _, plan = planned("Megatron", piece, TWO_AXES)
    activation = ROWS // B // 2 * 32 * 64 * 4
    found = communicated(piece, plan.decision, TWO_AXES, 4096)
    along = {(kind, axes, n): c for (kind, axes, n), c in found.items() if "y" in axes}
    assert along == {("all-reduce", ("y",), activation): 4 * B}
    gradients = {(kind, axes, n): c for (kind, axes, n), c in found.items() if "x" in axes}
    assert {(kind, axes) for kind, axes, _ in gradients} == {("all-reduce", ("x",))}
    sums = sum(n * c for (_, _, n), c in gradients.items())
    assert sums == sum(weights_of(piece)) / 4


def test_megatrons_forward_pass_reduces_two_activations(gpt):
    piece = gpt.graph(1, 1, B, "full")
    _, plan = planned("Megatron", piece, TWO_AXES)
    activation = ROWS // B // 2 * 32 * 64 * 4
    # Two forward and two backward; again one of the forward pass: the last is not recomputed.
    found = communicated(piece, plan.decision, TWO_AXES, 4096)
    assert found["all-reduce", ("y",), activation] == 5 * B


def test_the_distributed_optimizer_scatters_gradients_and_gathers_parameters(gpt):
    piece = gpt.graph(1, 1, B)
    _, plan = planned("MegatronSharded", piece, TWO_AXES)
    activation = ROWS // B // 2 * 32 * 64 * 4
    found = communicated(piece, plan.decision, TWO_AXES, 4096)
    assert {key: c for key, c in found.items() if "y" in key[1]} == {
        ("all-reduce", ("y",), activation): 4 * B
    }
    for kind in ("reduce-scatter", "all-gather"):
        total = sum(n * c for (k, axes, n), c in found.items() if k == kind and axes == ("x",))
        assert total == sum(weights_of(piece)) / 4
    plain = planned("Megatron", piece, TWO_AXES)[1]
    assert plan.memory.resident_bytes < plain.memory.resident_bytes


def test_data_parallel_sums_gradients_once_a_step(gpt):
    piece = gpt.graph(1, 1, B)
    _, plan = planned("DataParallel", piece, ONE_AXIS)
    found = communicated(piece, plan.decision, ONE_AXIS, 4096)
    assert {kind for kind, _, _ in found} == {"all-reduce"}
    assert sum(n * c for (_, _, n), c in found.items()) == sum(weights_of(piece))


def test_zero_holds_less(gpt):
    piece = gpt.graph(1, 1, B)
    # Memory is dear enough that parameters are gathered in each micro-batch, not kept.
    price = BytePrice(seconds_per_byte=1e-8)
    held = [
        planned(m, piece, ONE_AXIS, price)[1].memory.resident_bytes
        for m in ("DataParallel", "Zero2", "Zero3")
    ]
    state = sum(weights_of(piece))
    # Parameters, two moments and the accumulated gradient: all whole; moments a quarter; all.
    assert held[0] == pytest.approx(4 * state, rel=0.05)
    assert held[1] <= 2.5 * state * 1.05
    assert held[2] == pytest.approx(state, rel=0.05)


def test_experts_exchange_tokens_all_to_all():
    piece = moe_layers(ROWS).graph(1, 1, B)
    _, plan = planned("ExpertZero2", piece, ONE_AXIS)
    found = communicated(piece, plan.decision, ONE_AXIS, 1)
    # To the experts and back, forward and backward.
    assert sum(c for (kind, _, _), c in found.items() if kind == "all-to-all") == 4 * B
    graph = piece.graph
    experts = [
        layout.dims[0]
        for t, layout in zip(graph.inputs, plan.decision.inputs, strict=True)
        if len(graph.tensors[t].shape) == 3 and graph.tensors[t].shape[0] == 8
    ]
    assert experts
    assert all(axes == (0,) for axes in experts)


def test_axes_that_do_not_divide_the_experts_are_left_to_zero():
    piece = moe_layers(ROWS, num_experts=6).graph(1, 1, B)
    info = input_info(piece.graph, piece.batch_dims, [c.value for c in piece.leaving])
    for method, split in (("ExpertZero2", {OPTIMIZER}), ("ExpertZero3", {OPTIMIZER, PARAMETER})):
        pins = RESTRICTIONS[method](piece.graph, TWO_AXES, info).pins
        shapes = {i: piece.graph.tensors[t].shape for i, t in enumerate(piece.graph.inputs)}
        found = {i for i, shape in shapes.items() if len(shape) == 3 and shape[0] == 6}
        assert {info.roles[i] for i in found} == {OPTIMIZER, PARAMETER}
        for i in found:
            # Six experts over the axis of two; the axis of four along the larger other dim.
            inner = (1,) if info.roles[i] in split else ()
            larger = max((1, 2), key=lambda d: shapes[i][d])
            assert pins[i].dims[0] == (0,)
            assert pins[i].dims[larger] == inner
            assert pins[i].dims[3 - larger] == ()


@pytest.mark.parametrize("on", [ONE_AXIS, TWO_AXES], ids=["4", "2x4"])
@pytest.mark.parametrize("sizes", few(SIZES, SIZES[1::2]))
def test_no_method_is_cheaper_than_the_free_layer(sizes, on):
    rows, width, inner = sizes
    piece = perceptron_layers(rows, width, inner).graph(1, 1, B)
    free = ConditionedLayer(restricted_layer(INTRA_OP, piece, on, IntraOptions()), BytePrice())
    for method in RESTRICTIONS:
        if method.startswith("Megatron") and len(on.sizes) < 2:
            continue
        network = restricted_layer(method, piece, on, IntraOptions())
        layer = ConditionedLayer(network, BytePrice())
        # The rows decide how activations cross a cut: no more than one state is left.
        states = np.argwhere(np.isfinite(layer.bound_s))
        assert len(states) <= 1, method
        for enters, leaves in states.tolist():
            mine, best = layer.entry(enters, leaves), free.entry(enters, leaves)
            assert best is not None
            assert mine is None or mine.cost_s >= best.cost_s * (1 - 1e-9), method


@pytest.mark.parametrize("layer", few([0, 1, 5], [1]))
def test_no_method_is_cheaper_than_a_free_block(gpt, layer):
    piece = gpt.graph(layer, layer, B)
    free = ConditionedLayer(
        restricted_layer(INTRA_OP, piece, TWO_AXES, IntraOptions()), BytePrice()
    )
    for method in RESTRICTIONS:
        mine = ConditionedLayer(
            restricted_layer(method, piece, TWO_AXES, IntraOptions()), BytePrice()
        )
        for enters, leaves in np.argwhere(np.isfinite(mine.bound_s)).tolist():
            plan = mine.entry(enters, leaves)
            assert plan is None or plan.cost_s >= free.bound_s[enters, leaves] * (1 - 1e-9), method


def test_runs_add_up_and_the_table_agrees(gpt):
    costs = MethodCosts("DataParallel", gpt, IntraOptions())
    way = Variant(mesh=ONE_AXIS, remat="none", price=BytePrice())
    parts = [costs.run(way, B, k, k) for k in range(6)]
    assert None not in parts
    whole = costs.run(way, B, 0, 5)
    assert whole is not None
    assert whole.microbatch_s == pytest.approx(sum(p.microbatch_s for p in parts if p))
    assert whole.temporary_bytes == max(p.temporary_bytes for p in parts if p)
    assert 0 < whole.forward_s < whole.microbatch_s / 2
    kind = StageSubmesh(num_hosts=1, devices_per_host=4, memory_bytes=1e9)
    table = costs.table((kind,), ((way,),), B)
    assert table.microbatch_s[0, 5, 0, 0] == pytest.approx(whole.microbatch_s)
    assert math.isinf(table.microbatch_s[3, 2, 0, 0])


def test_an_unknown_method_is_named(gpt):
    with pytest.raises(PlanError, match="no method 'Zero9' for layers; known are DataParallel"):
        restricted_layer("Zero9", gpt.graph(1, 1, B), ONE_AXIS, IntraOptions())
