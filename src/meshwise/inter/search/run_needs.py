"""The least time and memory of runs of layers on one mesh, before they are planned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.run_bounds import bounds_of_runs
from meshwise.kernels.arrays import Floats
from meshwise.plan.stage import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeeds:
    """Lower bounds of runs of layers; arrays over (first layer, last layer).

    Attributes:
        loop_s: Seconds of all micro-batches, without gathering what other stages send.
        resident_bytes: Held all the time by one device.
        microbatch_bytes: Held by one device for each micro-batch in flight.
        temporary_bytes: Used by one device while a run runs.
    """

    loop_s: Floats
    resident_bytes: Floats
    microbatch_bytes: Floats
    temporary_bytes: Floats


def run_needs(
    costs: VariantCosts,
    mesh: LogicalMesh,
    remat: Remat,
    num_microbatches: int,
    *,
    bounded: tuple[Remat, int],
) -> RunNeeds | None:
    """Return what runs need at least; None if no layer has a plan.

    What is computed again comes on top of bounds without it, at best shared evenly by all devices.
    Each of n devices holds an n-th of what one device alone would hold, whose activations and
    temporary values grow no faster than rows.

    Args:
        costs: Bounds and plans of layers.
        mesh: The mesh.
        remat: What the backward pass computes again.
        num_microbatches: B.
        bounded: Rematerialisation and micro-batches whose bounds serve: `remat` or "none", and B or
            a number that divides it.
    """
    base, count = bounded
    if costs.bounds(mesh, base, count) is None:
        return None
    layers = {c: costs.layer_bounds(c, mesh, base, count) for c in set(costs.source.classes)}
    # What other stages send may be gathered in less time than the search takes it to need.
    here = {
        c: layer
        and replace(
            layer,
            arriving_s=np.zeros_like(layer.arriving_s),
            returning_s=np.zeros_like(layer.returning_s),
        )
        for c, layer in layers.items()
    }
    bounds = bounds_of_runs([here[c] for c in costs.source.classes])
    assert bounds is not None
    alone, size = costs.alone(mesh, remat, count), mesh.num_devices
    loop_s, resident = bounds.loop_s, bounds.resident_bytes
    held = used = np.zeros_like(loop_s)
    if alone is not None:
        share = count / num_microbatches / size
        held, used = (_finite(b) * share for b in (alone.microbatch_bytes, alone.temporary_bytes))
        resident = np.fmax(resident, _finite(alone.resident_bytes) / size)
        once = costs.alone(mesh, base, count) if base != remat else None
        if once is not None:
            more = (_finite(alone.loop_s) - _finite(once.loop_s)) / size
            loop_s = loop_s + np.fmax(more, 0.0)
    return RunNeeds(
        loop_s=loop_s, resident_bytes=resident, microbatch_bytes=held, temporary_bytes=used
    )


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)
