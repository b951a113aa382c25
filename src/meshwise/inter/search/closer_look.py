"""Single layers, looked at closely: they bound pipelines before all layers are planned.

Bounds of layers leave gaps, largest on meshes of several hosts.  To plan all layers there takes
long; layers are looked at one by one, the most frequent first, until it shows that no pipeline on
such meshes is fast enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.cost_table.variant import BoundsKey, LayerKey, Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.inter.search.chunk_bounds import crowded
from meshwise.kernels.arrays import Floats
from meshwise.plan.stage import Remat

# The most looks at one layer; with more, planning all layers as far as is needed may take less.
_MOST_LOOKS = 12


class CloserLook:
    """What is known of layers."""

    def __init__(self, costs: VariantCosts, num_devices: int) -> None:
        """Know nothing yet.

        Args:
            costs: Plans layers.
            num_devices: Devices of the cluster; meshes of equal size fill it.
        """
        self._costs, self._num_devices = costs, num_devices
        self._classes = np.array(costs.source.classes)
        # By mesh, rematerialisation and class of layers, for numbers of micro-batches.
        self._known: dict[tuple[LogicalMesh, Remat, int], dict[int, float]] = {}
        # Layers that are not looked at again.
        self._ended: set[tuple[BoundsKey, int]] = set()

    def least_s(self, key: BoundsKey, rough: BoundsKey, layer_s: Floats, enough_s: float) -> float:
        """Return seconds that no step takes less than whose meshes all plan their layers this way.

        Args:
            key: The mesh, what is computed again, and B.
            rough: What takes no more time, and serves others too; it is looked at first.
            layer_s: Bounds of the seconds of all micro-batches of each layer.
            enough_s: A bound of so many seconds need not be raised.
        """
        num_meshes = self._num_devices // key.mesh.num_devices

        def step_s(each: Floats) -> float:
            return max(float(each.sum()) / num_meshes, crowded(each, num_meshes))

        return step_s(self._looked_at((key, rough), layer_s, step_s, enough_s))

    def layers_s(self, key: BoundsKey, rough: BoundsKey, run: slice, enough_s: float) -> Floats:
        """Return seconds that each layer takes at least in a step, what is done once included.

        Args:
            key: The mesh, what is computed again, and B.
            rough: As `least_s` has it.
            run: Layers that are looked at.
            enough_s: Seconds of the run that need not be raised.
        """
        nothing = np.zeros(len(self._classes))
        return self._looked_at((key, rough), nothing, lambda s: float(s[run].sum()), enough_s)

    def _looked_at(
        self,
        keys: tuple[BoundsKey, BoundsKey],
        layer_s: Floats,
        value: Callable[[Floats], float],
        enough_s: float,
    ) -> Floats:
        """Seconds of each layer, raised one kind after the other until their value is enough."""
        key, rough = keys
        known = {c: self._known_s(key, c) for c in sorted(set(self._classes.tolist()))}

        def each(seconds: Mapping[int, float]) -> Floats:
            return np.fmax(layer_s, [seconds[c] for c in self._classes.tolist()])

        often = np.bincount(self._classes)
        order = sorted(known, key=lambda c: (-often[c], -layer_s[c]))
        for at, c in itertools.product(dict.fromkeys((rough, key)), order):
            if (at, c) in self._ended:
                continue
            if value(each(known)) >= enough_s:
                break
            found = self._raised_s(at, c, lambda s, c=c: value(each(known | {c: s})) >= enough_s)
            known[c] = max(known[c], found)
        return each(known)

    def _known_s(self, key: BoundsKey, c: int) -> float:
        """Seconds that a layer takes at least in a step, as far as is known.

        More micro-batches, and what is computed again, take no less time.
        """
        mesh, remat, count = key
        of = [self._known.get((mesh, r, c), {}) for r in ("none", remat)]
        found = [s for known in of for b, s in known.items() if count % b == 0]
        return max(found, default=0.0)

    def _raised_s(self, key: BoundsKey, c: int, is_enough: Callable[[float], bool]) -> float:
        """Seconds that a layer takes at least, looked at until they are enough, for a while."""
        mesh, remat, count = key
        way = Variant(mesh=mesh, remat=remat, price=BytePrice())
        layer = self._costs.layer(LayerKey(c, way, count))
        seconds = math.inf if layer is None else float(layer.proved_s.min())
        for _ in range(0 if layer is None else _MOST_LOOKS):
            assert layer is not None
            place = np.unravel_index(int(layer.proved_s.argmin()), layer.proved_s.shape)
            enters, leaves = (int(state) for state in place)
            if layer.is_exact[enters, leaves] or is_enough(seconds):
                break
            layer.sharpen(enters, leaves)
            seconds = float(layer.proved_s.min())
        if not is_enough(seconds):
            self._ended.add((key, c))
        self._known.setdefault((mesh, remat, c), {})[count] = seconds
        return seconds
