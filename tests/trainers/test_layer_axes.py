"""Layers as trainers run them: what they communicate, and what a device holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from doubles.graph_builders import mesh
from doubles.layered import (
    dropless_layers,
    gpt_layers,
    masked_attention_layers,
    moe_layers,
    perceptron_layers,
)
from meshwise.baselines.pipelines.block_layers import body_of
from meshwise.baselines.pipelines.layer_methods import INTRA_OP, restricted_layer
from meshwise.graph.dispatch import ROUNDS
from meshwise.inter.layer_cost.run_costs import cheapest_states
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer
from meshwise.intra.batch_loops import operator_paths
from meshwise.intra.options import IntraOptions
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.verify import verify_decision
from meshwise.trainers.layer_axes import LayerAxes
from meshwise.trainers.layer_dims import layer_dims

ROWS, B, LENGTH, HIDDEN = 32, 2, 32, 64
TWO_AXES = mesh(2, 4, bandwidths=(1e9, 30e9))
# Rows of a micro-batch on the first axis of two.
ACTIVATION = ROWS // B // 2 * LENGTH * HIDDEN * 4
MEGATRON = LayerAxes(
    roles=("data", "tensor"), sequence=(1, LENGTH), optimizer_over=frozenset(("data",))
)
ZERO = BytePrice()


@pytest.fixture(scope="module")
def gpt():
    return gpt_layers(ROWS)


def planned(method, piece, on, price=ZERO):
    layer = ConditionedLayer(restricted_layer(method, piece, on, IntraOptions()), price)
    while True:
        at = cheapest_states([layer], 0, 0)
        if layer.is_exact[at[0], at[1]]:
            break
        layer.sharpen(*at)
    entry = layer.entry(*at)
    verify_decision(piece.graph, entry.decision, on)
    return entry


def communicated(piece, decision, on, at_least=4096):
    found = Counter()
    for c in collectives(piece.graph, decision, on):
        if c.num_bytes >= at_least:
            found[c.kind, c.axes, c.num_bytes] += c.count
    return found


def test_what_the_dims_of_a_layer_are(gpt):
    dims = layer_dims(gpt.graph(1, 1, B))
    assert (dims.sequence, dims.num_heads, dims.num_experts) == ((1, LENGTH), 4, 1)
    assert dims.num_attentions == 1
    assert layer_dims(gpt.graph(1, 2, B)).num_attentions == 2
    assert not dims.has_rings
    joined = layer_dims(gpt_layers(ROWS, joins_attention=True).graph(1, 2, B))
    assert joined.has_rings
    assert (joined.sequence, joined.num_heads, joined.num_attentions) == ((1, LENGTH), 4, 2)
    moe = moe_layers(ROWS)
    known = {
        (d.sequence, d.num_experts)
        for d in (layer_dims(moe.graph(k, k, 1)) for k in set(moe.classes))
    }
    assert ((1, 32), 8) in known
    dims = layer_dims(perceptron_layers(ROWS, 8, 16, 32).graph(1, 1, 1))
    assert (dims.sequence, dims.num_heads, dims.num_experts) == (None, 0, 1)
    assert dims.num_attentions == 1


@pytest.mark.parametrize("per_block", [1, 2])
@pytest.mark.parametrize("joins_attention", [False, True])
def test_a_padding_mask_has_no_heads_but_attention_has(joins_attention, per_block):
    layers = masked_attention_layers(4, per_block=per_block, joins_attention=joins_attention)
    body = body_of(layers.classes)
    dims = layer_dims(layers.graph(body.first, body.first + body.period - 1, 1))
    assert dims.has_rings == joins_attention
    assert (dims.num_heads, dims.num_attentions) == (4, per_block)


def test_tensor_parallel_gathers_and_scatters_the_sequence(gpt):
    piece = gpt.graph(1, 1, B)
    entry = planned(MEGATRON, piece, TWO_AXES)
    found = communicated(piece, entry.decision, TWO_AXES)
    along = {key: count for key, count in found.items() if key[1] == ("y",)}
    # Forward and backward of attention and of the perceptron.
    assert along == {
        ("all-gather", ("y",), ACTIVATION): 4 * B,
        ("reduce-scatter", ("y",), ACTIVATION): 4 * B,
    }
    # Gradients are scattered, new parameters gathered, once a step.
    over_copies = {kind for kind, axes, _ in found if axes == ("x",)}
    assert over_copies == {"all-gather", "reduce-scatter"}
    free = planned(INTRA_OP, piece, TWO_AXES)
    assert free.cost_s <= entry.cost_s * (1 + 1e-9)


@pytest.mark.parametrize("layer", [0, -1])
def test_what_crosses_is_split_along_the_sequence_at_both_ends(gpt, layer):
    layer %= len(gpt.classes)
    network = restricted_layer(MEGATRON, gpt.graph(layer, layer, B), TWO_AXES, IntraOptions())
    side = network.leaving if layer == 0 else network.entering
    costs = network.problem.costs[side.node]
    left = [w.dims for w, cost in zip(side.layouts, costs, strict=True) if np.isfinite(cost)]
    assert left == [((0,), (1,), ())]


def test_context_parallel_gathers_keys_and_values(gpt):
    piece = gpt.graph(1, 1, B)
    axes = LayerAxes(roles=("data", "context"), sequence=(1, LENGTH))
    found = communicated(piece, planned(axes, piece, TWO_AXES).decision, TWO_AXES)
    along = {key for key in found if key[1] == ("y",)}
    assert ("all-gather", ("y",), ACTIVATION) in along
    # Nothing as large as scores passes, and products with weights need nothing.
    assert max(num_bytes for _, _, num_bytes in along) <= ACTIVATION
    assert sum(found[key] for key in along if key[2] == ACTIVATION) <= 8 * B


def test_micro_batches_of_one_row_are_restricted_as_others_are(gpt):
    """One row is no loop, but what follows the sequence is an activation as well."""
    axes = LayerAxes(roles=("context", "tensor"), sequence=(1, LENGTH))
    few, one = (axes(gpt.graph(1, 1, count), TWO_AXES).allowed for count in (B, ROWS))
    products = [
        sorted(sorted(len(choices) for choices in allowed[path]) for path, op in ops if op.heavy)
        for allowed, ops in (
            (few, operator_paths(gpt.graph(1, 1, B).graph)),
            (one, operator_paths(gpt.graph(1, 1, ROWS).graph)),
        )
    ]
    assert products[0] == products[1]
    assert len(products[0]) >= 16


@pytest.mark.parametrize(("role", "count"), [("context", B), ("ring", B), ("ring", ROWS)])
def test_keys_of_attention_as_one_operator_are_gathered_or_go_round(role, count):
    piece = gpt_layers(ROWS, joins_attention=True).graph(1, 1, count)
    roles, axis = (("data", role), "y") if count < ROWS else ((role, "tensor"), "x")
    axes = LayerAxes(roles=roles, sequence=(1, LENGTH))
    found = communicated(piece, planned(axes, piece, TWO_AXES).decision, TWO_AXES)
    kinds = {kind for kind, of, _ in found if of == (axis,)}
    assert ("permute" in kinds) == (role == "ring")
    assert ("all-gather" in kinds) == (role == "context")


def test_fully_sharded_parameters_hold_a_part(gpt):
    piece = gpt.graph(1, 1, B)
    over = frozenset(("fsdp",))
    axes = LayerAxes(
        roles=("fsdp",), sequence=(1, LENGTH), parameters_over=over, optimizer_over=over
    )
    on = mesh(4, bandwidths=(10e9,))
    whole = LayerAxes(roles=("data",), sequence=(1, LENGTH))
    price = BytePrice(seconds_per_byte=1e-8)
    held = [planned(m, piece, on, price).memory.resident_bytes for m in (axes, whole, "Zero3")]

    assert held[0] <= held[1] / 3
    assert held[0] == pytest.approx(held[2], rel=0.05)


def test_experts_are_split_and_tokens_exchanged():
    moe = moe_layers(ROWS)
    numbers = sorted(set(moe.classes))
    (layer,) = (k for k in numbers if layer_dims(moe.graph(k, k, 1)).num_experts > 1)
    piece = moe.graph(layer, layer, B)
    on = mesh(4, bandwidths=(10e9,))
    axes = LayerAxes(roles=("expert",), sequence=(1, 32))
    found = communicated(piece, planned(axes, piece, on).decision, on, 1)
    # To the experts and back, forward and backward.
    assert sum(n for (kind, _, _), n in found.items() if kind == "all-to-all") == 4 * B
    without = replace(axes, roles=("data",))
    found = communicated(piece, planned(without, piece, on).decision, on, 1)
    assert not [kind for kind, _, _ in found if kind == "all-to-all"]


def test_rows_without_capacities_go_to_their_experts():
    llama = dropless_layers(ROWS)
    numbers = sorted(set(llama.classes))
    (layer,) = (k for k in numbers if layer_dims(llama.graph(k, k, 1)).num_experts > 1)
    piece = llama.graph(layer, layer, B)
    on = mesh(4, bandwidths=(10e9,))
    axes = LayerAxes(roles=("expert",), sequence=(1, layer_dims(piece).sequence[1]))
    found = communicated(piece, planned(axes, piece, on).decision, on, 1)
    # Rows and results forward; rows, cotangents and gradients backward.
    sent = sum(n for (kind, _, _), n in found.items() if kind == "all-to-all")
    assert sent == 5 * ROUNDS * B
    without = replace(axes, roles=("data",))
    found = communicated(piece, planned(without, piece, on).decision, on, 1)
    assert not [kind for kind, _, _ in found if kind == "all-to-all"]
