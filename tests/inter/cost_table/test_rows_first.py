"""Meshes of three axes whose first one splits rows: smaller spaces of valid plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwise as mw
from doubles.layered import gpt_layers
from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.cost_table.layer_networks import LayerNetworks
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.intra.batch_loops import batch_loops
from meshwise.intra.options import IntraOptions, Restriction
from meshwise.plan.verify import verify_decision
from meshwise.trace.layers.layering import Layering

ROWS, COUNT = 8, 4


@pytest.fixture(scope="module")
def layers() -> Layering:
    return gpt_layers(ROWS, joins_attention=True)


@pytest.fixture(scope="module")
def way() -> Variant:
    kinds = mw.Cluster.virtual("2x p3.8xlarge").submesh_kinds()
    kind = max(kinds, key=lambda kind: kind.num_devices)
    return Variant(mesh=kind.mesh((2, 2, 2)), remat="none", price=BytePrice())


def test_rows_are_split_over_the_first_axis(layers: Layering, way: Variant) -> None:
    costs = VariantCosts(layers, IntraOptions(rows_first=True))
    assert costs.runs(way, COUNT) is not None
    (entry,) = costs.run_plan(way, COUNT, 1, 1).entries
    piece = entry.layer.piece
    verify_decision(piece.graph, entry.decision, way.mesh)
    loops = batch_loops(piece.graph, piece.batch_dims)
    body = piece.graph.operators[piece.loop].bodies[0]
    inner = entry.decision.operators[piece.loop].bodies[0]
    heavy = [
        (loops[piece.loop, 0, k], decided.strategy[0])
        for k, (op, decided) in enumerate(zip(body.operators, inner.operators, strict=True))
        if op.heavy and (piece.loop, 0, k) in loops
    ]
    assert heavy
    assert all(choice in rows for rows, choice in heavy)


def test_only_three_axes_that_no_method_restricts_are_restricted(
    layers: Layering, way: Variant
) -> None:
    piece = layers.graph(layers.classes[1], layers.classes[1], COUNT)

    def num_choices(mesh: LogicalMesh, restriction: Restriction, *, rows_first: bool) -> int:
        options = IntraOptions(restriction=restriction, rows_first=rows_first)
        network = LayerNetworks().network(piece, mesh, options)
        assert network is not None
        return sum(int(np.isfinite(cost).sum()) for cost in network.problem.costs)

    method = Restriction(name="no all-to-all", forbid_inside=frozenset(("all-to-all",)))
    two = replace(way.mesh, axes=way.mesh.axes[:2])
    for mesh, restriction in ((way.mesh, method), (two, Restriction())):
        free, asked = (num_choices(mesh, restriction, rows_first=r) for r in (False, True))
        assert free == asked
    free, asked = (num_choices(way.mesh, Restriction(), rows_first=r) for r in (False, True))
    assert asked < free
