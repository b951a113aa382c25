"""Price of work that the backward pass repeats: by hand on a layer, and as a sum of choices."""

from __future__ import annotations

import numpy as np
import pytest

import meshwise as mw
from meshwise.inter.layer_cost.layer_network import layer_bounds, layer_network
from meshwise.inter.layer_cost.recomputation import again_s, repeated
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer
from meshwise.intra.options import ALPA, IntraOptions
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import StepSignature

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
ROWS, B = 8, 2
MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2, 2))


@pytest.fixture(scope="module")
def gpt() -> Layering:
    config = model_config("gpt-tiny", num_layers=3, dtype="float16")
    step, state, batch = model_step(config, ROWS).abstract
    return layers_of(step, (state, batch), {}, SIGNATURE, 3)[0]


def test_products_of_both_passes_have_their_operands_written_twice(gpt: Layering) -> None:
    piece = gpt.graph(1, 1, B, "none")
    body = piece.graph.operators[piece.loop].bodies[0]
    found = repeated(piece)
    rows, config = ROWS // B, model_config("gpt-tiny")
    wide = (rows, config.seq_len, 4 * config.hidden)
    # Of the feed-forward layer its input to the activation is kept; what comes out of that is
    # read by the second product and by the gradient of its weights.
    assert wide in [body.tensors[t].shape for t in found.read]
    assert [body.tensors[t].shape for t in found.written].count(wide) == 1
    assert set(found.read) <= set(piece.border.tensors)
    assert not set(found.written) & set(piece.border.tensors)


def test_nothing_is_repeated_where_everything_is(gpt: Layering) -> None:
    # A layer that computes all again says so in its graph, where every operator has its price.
    assert repeated(gpt.graph(1, 1, B, "full")).tensors == ()


def test_the_sum_of_choices_is_the_time_of_the_plan(gpt: Layering) -> None:
    piece = gpt.graph(1, 1, B, "none")
    network = layer_network(piece, MESH, IntraOptions())
    layer = ConditionedLayer(network, BytePrice())
    states = [int(s) for s in np.unravel_index(np.argmin(layer.bound_s), layer.bound_s.shape)]
    entry = layer.entry(states[0], states[1])
    assert entry is not None
    choice = layer.choice(states[0], states[1])
    summed = sum(s[c] for s, c in zip(network.again_s, choice, strict=True))
    assert summed > 0
    assert summed == pytest.approx(again_s(piece, entry.decision, MESH), rel=1e-9)
    assert entry.cost_s == pytest.approx(entry.loop_s + entry.once_s, rel=1e-9)
    assert layer_bounds(network).loop_s[states[0], states[1]] <= entry.loop_s * (1 + 1e-9)


def test_the_papers_objective_has_no_time_of_memory(gpt: Layering) -> None:
    network = layer_network(gpt.graph(1, 1, B, "none"), MESH, IntraOptions(objective=ALPA))
    assert all((s == 0).all() for s in network.again_s)
