"""Costs of stages for one number of micro-batches: bounds first, plans where stages use them.

Planning layers is the dear part of the search, and most submeshes are far from worth it.  So all
variants of one logical mesh and one way of rematerialisation share a bound until the best stages
use it; then runs of layers that may be worth it (`worthwhile`) are planned at the first price of
memory, which is the lowest, and the stages chosen anew.  At a higher price a run takes no less
time; it is planned where the best stages use that bound, since what was planned does not fit.
Stages without bounds among them that are the best are the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.cost_table.second_process import SecondProcess
from meshwise.inter.cost_table.variant import BoundsKey, Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.stages.promising_runs import worthwhile
from meshwise.inter.stages.stage_problem import StageCosts, StageSpan
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.kernels.arrays import Bools, Floats
from meshwise.plan.stage import Remat

_MEMORY = ("resident_bytes", "microbatch_bytes", "temporary_bytes")
# By so much a bound at another price is above a plan, which is preferred where it fits.
_MORE = 1 + 1e-9
_NAMES = ("microbatch_s", "gather_s", "once_s", *_MEMORY)


class LazyTable:
    """Costs of stages on submeshes.

    Attributes:
        num_changes: How often more became known.
    """

    def __init__(
        self,
        costs: VariantCosts,
        submeshes: Sequence[StageSubmesh],
        variants: Sequence[Sequence[Variant]],
        num_microbatches: int,
        *,
        bounds_of: int,
        is_cautious: bool = False,
        beside: SecondProcess | None = None,
        report: Callable[[str], object],
    ) -> None:
        """Bound everything.

        Args:
            costs: Plans layers.
            submeshes: Kinds of submeshes.
            variants: For each of them the ways to plan on it.
            num_microbatches: B.
            bounds_of: A number of micro-batches that divides B, for rough bounds: a layer takes no
                more time for the rows of several micro-batches at once than one by one.
            is_cautious: Whether temporary values have no bound.  One for n devices is an n-th of
                what one device holds at its peak, which another order of the operators or a copy
                that one device makes puts too high by some per cent.
            beside: Computes bounds too.
            report: Is told what is being planned.
        """
        self._beside = beside
        self._costs, self._submeshes = costs, tuple(submeshes)
        self._variants, self._count = variants, num_microbatches
        self._bounds_of = bounds_of
        self._bounded = _MEMORY[:2] if is_cautious else _MEMORY
        self._report = report
        layers = len(costs.source.classes)
        shape = (layers, layers, len(submeshes), max(map(len, variants)))
        self._arrays = {name: np.full(shape, np.inf) for name in _NAMES}
        # Bounds are those of fewer micro-batches or of this number; runs are planned or not.
        self._is_rough = np.full(shape[2:], bounds_of < num_microbatches)
        # Of which way to rematerialise bounds are taken.
        self._base: dict[tuple[int, int], Remat] = {}
        self._is_planned = np.zeros(shape, np.bool_)
        # Bounds of seconds before `raise_bounds`.
        self._bounds_s: dict[tuple[int, int], Floats] = {}
        # Seconds of a step that runs take at least, of layers that were looked at closely.
        self._least_s: dict[tuple[LogicalMesh, Remat], Floats] = {}
        places: list[tuple[int, int, BoundsKey]] = []
        for m, ways in enumerate(variants):
            first: dict[tuple[LogicalMesh, Remat], int] = {}
            for v, way in enumerate(ways):
                first.setdefault((way.mesh, way.remat), v)
            # At other prices of memory nothing is known before the plans at the first one.
            self._is_rough[m, [v for v in range(shape[3]) if v not in first.values()]] = False
            for (mesh, remat), v in first.items():
                base = self._base[m, v] = "none" if (mesh, "none") in first else remat
                places.append((m, v, BoundsKey(mesh, base, bounds_of)))
        self._bound_all(places)
        self._shown = StageCosts(
            submeshes=self._submeshes,
            **{name: _read_only(array) for name, array in self._arrays.items()},
        )
        self.num_changes = 0

    def serve(
        self,
        submeshes: Sequence[StageSubmesh],
        beside: SecondProcess,
        report: Callable[[str], object],
    ) -> None:
        """Serve another search, with what is known.

        Args:
            submeshes: The same, with other memory.
            beside: Computes bounds too.
            report: Is told what is being planned.
        """
        self._submeshes, self._beside, self._report = tuple(submeshes), beside, report
        self._shown = replace(self._shown, submeshes=self._submeshes)

    def _bound_all(self, places: Sequence[tuple[int, int, BoundsKey]]) -> None:
        if self._beside is not None:
            self._beside.bound([key for _, _, key in places], self._report)
        for m, v, key in places:
            self._bound(m, v, key)

    def _bound(self, m: int, v: int, key: BoundsKey) -> None:
        """Write the bounds that all variants with one mesh and rematerialisation share.

        Bounds for no rematerialisation serve for others too: what is computed again comes on top,
        at best shared evenly by all devices.
        """
        way = self._variants[m][v]
        if not self._costs.has_bounds(*key):
            self._report(f"bounds on {self._submeshes[m]} as {_named(key.mesh)}, remat {key.remat}")
        bounds = self._costs.bounds(*key)
        count = key.num_microbatches if key.remat == way.remat else self._bounds_of
        alone = self._alone(way, way.remat, count)
        at = (slice(None), slice(None), m, v)
        for name in _NAMES:
            self._arrays[name][at] = np.inf
        if bounds is None:
            return
        exists = np.isfinite(bounds.loop_s)
        nothing = np.zeros_like(bounds.loop_s)
        columns = {
            "microbatch_s": bounds.loop_s / self._count,
            "gather_s": nothing,
            "once_s": nothing,
            "resident_bytes": bounds.resident_bytes,
            "microbatch_bytes": nothing,
            "temporary_bytes": nothing,
        }
        if alone is not None and key.remat != way.remat:
            once = self._alone(way, key.remat, count)
            if once is not None:
                there = np.isfinite(alone.loop_s) & np.isfinite(once.loop_s)
                more = np.where(there, alone.loop_s, 0.0) - np.where(there, once.loop_s, 0.0)
                more = np.fmax(more, 0.0) / way.mesh.num_devices
                columns["microbatch_s"] = columns["microbatch_s"] + more / self._count
        if alone is not None:
            # Each of n devices holds an n-th at least.
            for name in self._bounded:
                share = getattr(alone, name) / way.mesh.num_devices
                columns[name] = np.fmax(columns[name], np.where(np.isfinite(share), share, 0.0))
        for name in _NAMES:
            self._arrays[name][at] = np.where(exists, columns[name], np.inf)
        self._bounds_s[m, v] = self._arrays["microbatch_s"][at].copy()
        self._raise(m, v)

    def raise_bounds(self, way: Variant, least_s: Floats, stage: StageSpan) -> bool:
        """Raise bounds of runs under all variants with one mesh and rematerialisation.

        Args:
            way: One of the variants.
            least_s: For (first layer, last layer) the seconds that a step takes at least for them,
                what is done once included.
            stage: A run under this variant.

        Returns:
            Whether the bound of that stage is higher than before.
        """
        before = float(self._arrays["microbatch_s"][stage.place])
        kind = way.mesh, way.remat
        self._least_s[kind] = np.fmax(least_s, self._least_s.get(kind, 0.0))
        for m, ways in enumerate(self._variants):
            for v, other in enumerate(ways):
                if (other.mesh, other.remat) == kind:
                    self._raise(m, v)
        self.num_changes += 1
        return float(self._arrays["microbatch_s"][stage.place]) > before

    def least_s(self) -> Floats:
        """Return the seconds of a step that each run takes at least, as far as is known now."""
        costs = self.costs()
        found = self._count * costs.microbatch_s + costs.once_s
        for m, ways in enumerate(self._variants):
            for v, way in enumerate(ways):
                looked = self._least_s.get((way.mesh, way.remat))
                if looked is not None:
                    found[:, :, m, v] = np.fmax(found[:, :, m, v], looked)
        return found

    def _raise(self, m: int, v: int) -> None:
        """Raise bounds of runs that are not planned to what is known of single layers.

        What is known is of a whole step, and a part of it may be done once.  The formula counts
        what is added to a micro-batch once for each of n stages, and B - 1 times more for the
        slowest one.  So a (B + n - 1)-th is added, for the largest possible n: then the formula
        never says more than for the true costs.
        """
        way = self._variants[m][v]
        least_s = self._least_s.get((way.mesh, way.remat))
        if least_s is None or (m, v) not in self._bounds_s:
            return
        bounds_s, now_s = self._bounds_s[m, v], self._arrays["microbatch_s"][:, :, m, v]
        is_bound = np.isfinite(bounds_s) & ~self._is_planned[:, :, m, v]
        first, last = np.nonzero(is_bound)
        most_stages = len(now_s) - (last - first)
        more_s = np.fmax(least_s[is_bound] - self._count * bounds_s[is_bound], 0.0)
        now_s[is_bound] = bounds_s[is_bound] + more_s / (self._count + most_stages - 1)

    def _alone(self, way: Variant, remat: Remat, count: int) -> RunCosts | None:
        """What one device of a mesh needs at least, from a number of micro-batches that divides B.

        None, or infinite, where a pin names axes that one device does not have.  What a micro-batch
        holds grows no faster than its rows.
        """
        found = self._costs.alone(way.mesh, remat, count)
        if found is None or count == self._count:
            return found
        share = count / self._count
        return replace(
            found,
            microbatch_bytes=found.microbatch_bytes * share,
            temporary_bytes=found.temporary_bytes * share,
        )

    def costs(self) -> StageCosts:
        """Return what is known; it changes with the table: a copy would take gigabytes."""
        return self._shown

    def _unplanned(self, stages: Sequence[StageSpan]) -> list[tuple[int, int]]:
        """Submeshes and variants of stages that are not planned."""
        ways = self._variants
        return sorted(
            {
                # The same submesh may be there twice, with other places.
                (m, s.variant)
                for s in stages
                for m in range(len(ways))
                if ways[m] == ways[s.submesh]
                and not self._is_planned[s.first_layer, s.last_layer, m, s.variant]
            }
        )

    def _rough(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, int, BoundsKey]]:
        """Those that have no bounds of their own, and what these are."""
        ways = self._variants
        return [
            (m, v, BoundsKey(ways[m][v].mesh, self._base[m, v], self._count))
            for m, v in places
            if self._is_rough[m, v]
        ]

    def plan(self, stages: Sequence[StageSpan], num_devices: int, at_most_s: float) -> bool:
        """Know more of what these stages use; whether there was more to know.

        Bounds of fewer micro-batches become those of B, and bounds become plans.

        Args:
            stages: The best ones, as far as is known.
            num_devices: Of the cluster.
            at_most_s: Runs of layers that no faster step can have are left for later.
        """
        todo = self._unplanned(stages)
        better = self._rough(todo)
        for m, v, _ in better:
            self._is_rough[m, v] = False
        self._bound_all(better)
        self.num_changes += bool(todo)
        if todo and not better:
            worth = worthwhile(self.costs(), num_devices, self._count, at_most_s)
            for stage in stages:
                worth[stage.first_layer, stage.last_layer] = True
            for m, v in todo:
                self._tell(m, v, worth[:, :, m])
            if self._beside is not None:
                asked = [(self._variants[m][v], worth[:, :, m]) for m, v in todo]
                self._beside.runs(asked, self._count)
            for m, v in todo:
                self._plan(m, v, worth[:, :, m])
        return bool(todo)

    def correct(self, stages: Sequence[StageSpan]) -> bool:
        """Replace what the table says of these stages by what their plans hold, where it differs.

        Between plans of equal cost another may be taken when a run is put together again.  What is
        compared with the memory of a device is then no longer what the plan holds.

        Args:
            stages: Stages that are planned.

        Returns:
            Whether something changed, so that stages must be chosen anew.
        """
        changed = False
        for stage in stages:
            run = (stage.first_layer, stage.last_layer)
            held = self._costs.held(self._variants[stage.submesh][stage.variant], self._count, *run)
            for m, ways in enumerate(self._variants):
                # The same submesh may be there twice, with other places.
                at = (*run, m, stage.variant)
                if ways != self._variants[stage.submesh]:
                    continue
                for name in _MEMORY:
                    num_bytes = getattr(held, name)
                    changed |= bool(self._arrays[name][at] != num_bytes)
                    self._arrays[name][at] = num_bytes
        if changed:
            self.num_changes += 1
        return changed

    def _tell(self, m: int, v: int, wanted: Bools) -> None:
        way = self._variants[m][v]
        if not self._costs.has_runs(way, self._count, wanted):
            self._report(f"layers on {self._submeshes[m]} as {_named(way.mesh)}, remat {way.remat}")

    def _plan(self, m: int, v: int, wanted: Bools) -> None:
        """Plan runs under one variant of a submesh."""
        new = wanted & ~self._is_planned[:, :, m, v]
        memory = {name: self._arrays[name][:, :, m, v].copy() for name in _MEMORY}
        self._is_planned[wanted, m, v] = True
        way = self._variants[m][v]
        runs = self._costs.runs(way, self._count, wanted)
        for name in _NAMES:
            self._arrays[name][wanted, m, v] = np.inf
        if runs is None:
            return
        self._arrays["microbatch_s"][wanted, m, v] = runs.loop_s[wanted] / self._count
        for name in _NAMES[1:]:
            self._arrays[name][wanted, m, v] = getattr(runs, name)[wanted]
        if (m, v) in self._base:
            self._bound_others(m, v, new, memory)

    def _bound_others(self, m: int, v: int, new: Bools, memory: dict[str, Floats]) -> None:
        """Where runs are planned at the first price, bound them at the others.

        What holds less is not faster; how much it holds nobody knows yet.
        """
        first = self._variants[m][v]
        for w, way in enumerate(self._variants[m]):
            if w == v or (way.mesh, way.remat) != (first.mesh, first.remat):
                continue
            # Runs that are already planned at the other price are not touched.
            open_runs = new & ~self._is_planned[:, :, m, w]
            for name in _NAMES:
                array = self._arrays[name]
                known = memory[name] if name in memory else _MORE * array[:, :, m, v]
                array[open_runs, m, w] = known[open_runs]


def _read_only(array: Floats) -> Floats:
    view = array.view()
    view.flags.writeable = False
    return view


def _named(mesh: LogicalMesh) -> str:
    return "x".join(map(str, mesh.sizes))
