"""Layers that are looked at closely take no more by that than any plan of theirs."""

from __future__ import annotations

import numpy as np
import pytest

import meshwise as mw
from doubles.layered import gpt_layers
from meshwise.inter.cost_table.variant import BoundsKey, Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.inter.search.closer_look import CloserLook
from meshwise.intra.options import IntraOptions
from meshwise.plan.stage import Remat

CLUSTER = mw.Cluster.virtual("2x p3.8xlarge")


@pytest.mark.parametrize("remat", ["none", "full"])
def test_no_plan_of_a_run_is_below(remat: Remat) -> None:
    costs = VariantCosts(gpt_layers(16), IntraOptions())
    (kind,) = (k for k in CLUSTER.submesh_kinds() if k.shape == (2, 4))
    mesh, look = kind.mesh((2, 4)), CloserLook(costs, CLUSTER.num_devices)
    count, layers = 4, len(costs.source.classes)
    key, rough = BoundsKey(mesh, remat, count), BoundsKey(mesh, "none", 2)
    runs = costs.runs(Variant(mesh=mesh, remat=remat, price=BytePrice()), count)
    assert runs is not None
    each = look.layers_s(key, rough, slice(0, layers), np.inf)
    assert (each > 0).all()
    for first in range(layers):
        for last in range(first, layers):
            least = float(each[first : last + 1].sum())
            assert least <= (runs.loop_s + runs.once_s)[first, last] * (1 + 1e-9)
    # One mesh of all devices: its own work is the step.
    least_s = look.least_s(key, rough, np.zeros(layers), np.inf)
    assert least_s == pytest.approx(float(each.sum()))


def test_what_is_enough_is_not_looked_at() -> None:
    costs = VariantCosts(gpt_layers(16), IntraOptions())
    (kind,) = (k for k in CLUSTER.submesh_kinds() if k.shape == (1, 4))
    look, key = CloserLook(costs, CLUSTER.num_devices), BoundsKey(kind.mesh((4,)), "none", 4)
    known = np.full(len(costs.source.classes), 2.0)
    assert look.least_s(key, key, known, 1.0) == known.sum() / 2
    assert not costs.has_bounds(*key)
