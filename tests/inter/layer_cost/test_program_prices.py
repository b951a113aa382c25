"""What a layer is priced at are the collectives that its programs send."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any

import optax
import pytest

import meshwise as mw
from doubles.few import few_rows
from doubles.layered_steps import SIGNATURE
from meshwise.baselines.pipelines.layer_costs import seconds_of
from meshwise.baselines.pipelines.layer_methods import restricted_layer
from meshwise.inter.layer_cost.recomputation import repeated_moves
from meshwise.inter.layer_cost.run_costs import cheapest_states, compose, entries
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer, Entry
from meshwise.inter.search.layer_work import layer_work
from meshwise.intra.options import IntraOptions
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.plan.counts.collectives import collectives, sent
from meshwise.planner.pipeline import layers_of
from meshwise.trace.layers.layering import Layering

B = 2
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2, 2))


@functools.cache
def layers_of_gpt() -> Layering:
    config = model_config("gpt-tiny", num_layers=3, hidden=256, seq_len=16)
    step, state, batch = model_step(config, 8, CLIPPED).abstract
    return layers_of(step, (state, batch), {}, SIGNATURE, 3)[0]


def planned(method: str, remat: Any, price: float) -> list[Entry]:
    layers = layers_of_gpt()
    networks = [
        restricted_layer(method, layers.graph(c, c, B, remat), MESH, IntraOptions())
        for c in layers.classes
    ]
    costs = [ConditionedLayer(n, BytePrice(seconds_per_byte=price), exact=False) for n in networks]
    compose(costs)
    return entries(costs, 0, cheapest_states(costs, 0, len(costs) - 1))


ROWS = list(itertools.product(("Zero2", "Zero3", "IntraOp"), ("none", "full"), (0.0, 1e-9)))
QUICK = [("Zero3", "none", 0.0), ("Zero3", "none", 1e-9), ("IntraOp", "none", 1e-9)]


@pytest.mark.parametrize(("method", "remat", "price"), few_rows(ROWS, QUICK))
def test_programs_send_what_the_graph_is_priced_at(method: str, remat: Any, price: float) -> None:
    kinds: Counter[str] = Counter()
    for entry in planned(method, remat, price):
        piece, decision = entry.layer.piece, entry.decision
        of_graph: Counter[object] = Counter()
        for c in collectives(piece.graph, decision, MESH):
            of_graph[c.kind, c.axes, c.num_bytes] += c.count
        for moves in repeated_moves(piece, decision):
            for move in moves:
                for x in sent(move, MESH):
                    axes = tuple(MESH.names[a] for a in x.axes)
                    of_graph[x.kind, axes, x.num_bytes] += move.times
        of_programs: Counter[object] = Counter()
        for c in layer_work(piece, decision, MESH, splits_backward=False).collectives:
            of_programs[c.kind, c.axes, c.num_bytes] += c.count
            kinds[c.kind] += c.count
        assert of_graph == of_programs
        # The search never lacks what the finished plan takes.
        loop_s, once_s = seconds_of(piece, decision, MESH)
        assert entry.loop_s >= loop_s * (1 - 1e-9)
        assert entry.once_s >= once_s * (1 - 1e-9)
    assert kinds
