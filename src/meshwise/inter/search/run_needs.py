"""The least time and memory of runs of layers on one mesh, before they are planned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwise.inter.cost_table.variant import BoundsKey
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.run_bounds import RunBounds, bounds_of_runs
from meshwise.kernels.arrays import Floats


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


class KnownNeeds:
    """The least needs of runs of layers, each computed once."""

    def __init__(self, costs: VariantCosts) -> None:
        """Know nothing yet.

        Args:
            costs: Bounds and plans of layers.
        """
        self._costs = costs
        self._known: dict[object, RunNeeds | None] = {}
        self._ungathered: dict[BoundsKey, RunBounds | None] = {}

    def of(self, key: BoundsKey, rough: BoundsKey) -> RunNeeds | None:
        """Return what runs need at least; None if no layer has a plan.

        What is computed again comes on top of bounds without it, at best shared evenly by all
        devices.  Each of n devices holds an n-th of what one device alone would hold, whose
        activations and temporary values grow no faster than rows.

        Args:
            key: The mesh, what is computed again, and B.
            rough: Whose bounds serve: the same or no rematerialisation, and B or a number that
                divides it.
        """
        if (key, rough) not in self._known:
            self._known[key, rough] = self._found(key, rough)
        return self._known[key, rough]

    def _found(self, key: BoundsKey, rough: BoundsKey) -> RunNeeds | None:
        (mesh, remat, num_microbatches), (_, base, count) = key, rough
        bounds = self._bounds(rough)
        if bounds is None:
            return None
        alone, size = self._costs.alone(mesh, remat, count), mesh.num_devices
        loop_s, resident = bounds.loop_s, bounds.resident_bytes
        held = used = np.zeros_like(loop_s)
        if alone is not None:
            share = count / num_microbatches / size
            held, used = (
                _finite(b) * share for b in (alone.microbatch_bytes, alone.temporary_bytes)
            )
            resident = np.fmax(resident, _finite(alone.resident_bytes) / size)
            once = self._costs.alone(mesh, base, count) if base != remat else None
            if once is not None:
                more = (_finite(alone.loop_s) - _finite(once.loop_s)) / size
                loop_s = loop_s + np.fmax(more, 0.0)
        return RunNeeds(
            loop_s=loop_s, resident_bytes=resident, microbatch_bytes=held, temporary_bytes=used
        )

    def _bounds(self, key: BoundsKey) -> RunBounds | None:
        """Bounds without gathers, which may take less time than the search takes them to need."""
        if key not in self._ungathered:
            self._ungathered[key] = self._without_gathers(key)
        return self._ungathered[key]

    def _without_gathers(self, key: BoundsKey) -> RunBounds | None:
        costs = self._costs
        if costs.bounds(*key) is None:
            return None
        layers = {c: costs.layer_bounds(c, *key) for c in set(costs.source.classes)}
        here = {
            c: layer
            and replace(
                layer,
                arriving_s=np.zeros_like(layer.arriving_s),
                returning_s=np.zeros_like(layer.returning_s),
            )
            for c, layer in layers.items()
        }
        return bounds_of_runs([here[c] for c in costs.source.classes])


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)
