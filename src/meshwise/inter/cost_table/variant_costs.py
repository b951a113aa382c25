"""Costs of all runs of layers under a variant, and bounds of what they cost under any.

A variant is a way to plan a run on a submesh: a logical mesh, what the backward pass computes
again, and a price of memory.  Layers of one class on one logical mesh are planned once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from meshwise.assignment.solver_time import SolverTime
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError
from meshwise.graph.layout import Layout
from meshwise.inter.cost_table.layer_networks import LayerNetworks
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.rows_first import has_many_axes
from meshwise.inter.cost_table.variant import BoundsKey, LayerKey, Variant
from meshwise.inter.layer_cost.footprint import Footprint, joint_footprint
from meshwise.inter.layer_cost.layer_network import LayerNetwork, layer_bounds
from meshwise.inter.layer_cost.layer_record import LayerBounds, LayerRecord
from meshwise.inter.layer_cost.run_bounds import RunBounds, bounds_of_runs
from meshwise.inter.layer_cost.run_costs import (
    PlansAhead,
    RunCosts,
    cheapest_states,
    compose,
    entries,
    gathers,
)
from meshwise.inter.layer_cost.state_costs import (
    BytePrice,
    ConditionedLayer,
    Entry,
    price_key,
)
from meshwise.intra.options import IntraOptions
from meshwise.kernels.arrays import Bools
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Remat


class LayerSource(Protocol):
    """Where the graphs of layers come from.

    Attributes:
        classes: For each layer the first one that is equal to it.
    """

    @property
    def classes(self) -> tuple[int, ...]:
        """For each layer the first one that is equal to it."""
        ...

    def graph(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceGraph:
        """The graph to plan of the layers `first` to `last`."""
        ...

    def crossing_bytes(self, layer: int) -> int:
        """Bytes, for the whole batch, of the activations that cross the cut after a layer."""
        ...


class RunPlan(NamedTuple):
    """The plans of the layers of a run.

    Attributes:
        entries: Of each layer.
        enters: Layout of the activation at the cut before it.
        leaves: At the cut after it.
        arriving_s: Seconds to gather one micro-batch's activation from the stage before.
        returning_s: The same of the cotangent from the next stage.
    """

    entries: tuple[Entry, ...]
    enters: Layout
    leaves: Layout
    arriving_s: float
    returning_s: float

    @property
    def memory(self) -> Footprint:
        """What a device holds."""
        return joint_footprint([entry.memory for entry in self.entries])

    @property
    def once_s(self) -> float:
        """Seconds of what runs once a step."""
        return sum(entry.once_s for entry in self.entries)


_MAX_AXES = 2


def logical_views(kind: SubmeshKind) -> tuple[LogicalMesh, ...]:
    """Return the logical meshes of a submesh that are worth a try.

    Across hosts the second axis is a host, half of one, or two devices, because long rings of keys
    leave little to split on it.  One axis has nearly the plans of two, but tokens go to experts and
    back in one all-to-all.

    Args:
        kind: The submesh.
    """
    pairs = [m for m in kind.logical_meshes(_MAX_AXES) if len(m.axes) == _MAX_AXES]
    if kind.num_hosts > 1:
        size = kind.devices_per_host
        widths = (size, size // 2, 2 if size % 2 == 0 else size)
        pairs = [m for m in pairs if m.sizes[1] in widths] or pairs
    return (*pairs, kind.mesh((kind.num_devices,)))


class LayerTimes(Protocol):
    """What tells how long a planned layer takes, in place of the model."""

    def __call__(
        self,
        layer: int,
        mesh: LogicalMesh,
        remat: Remat,
        num_microbatches: int,
        decision: GraphDecision,
    ) -> tuple[float, float]:
        """Seconds of all micro-batches of a step, and of what runs once a step."""
        ...


class VariantCosts:
    """Plans layers, and remembers what was planned.

    Attributes:
        source: The layers.
        options: How they are planned.
        times: Tells how long plans take; None: the model does.
        beside: Makes several plans of layers at once; None: each is made when it is used.
        records: What was found out about layers, by this search or before.
        is_shareable: Whether another process may bound layers by graphs and options alone.
    """

    is_shareable = True

    def __init__(
        self,
        source: LayerSource,
        options: IntraOptions,
        times: LayerTimes | None = None,
        records: LayerRecords | None = None,
    ) -> None:
        self.source = source
        self.options = options
        self.times = times
        # What the clock cut short, or was written down elsewhere too, is not for others.
        is_pure = math.isinf(options.time_limit_s) and options.dump_ilp is None
        self.records = records if records is not None and is_pure else LayerRecords()
        self.beside: PlansAhead | None = None
        self._made = LayerNetworks()
        self._solver_times: dict[LogicalMesh, SolverTime] = {}
        self._single: dict[DeviceSpec, LogicalMesh] = {}
        self._graphs: dict[object, PieceGraph] = {}
        self._networks: dict[object, LayerNetwork | None] = {}
        self._asked: dict[object, tuple[PieceGraph, IntraOptions, LayerRecord] | None] = {}
        self._graph_keys: dict[LayerNetwork, tuple[int, Remat, int]] = {}
        self._layers: dict[LayerKey, ConditionedLayer | None] = {}
        self._costs: dict[object, tuple[Bools, RunCosts | None]] = {}
        self._bounds: dict[BoundsKey, RunBounds | None] = {}
        self._plans: dict[object, RunPlan] = {}

    def restricted(self, piece: PieceGraph, mesh: LogicalMesh) -> tuple[PieceGraph, IntraOptions]:
        """A layer and how it is planned on a mesh; overridden where layouts are pinned.

        Raises:
            InfeasibleError: the pins do not fit the mesh.
        """
        del mesh
        return piece, self.options

    def solver_time(self, mesh: LogicalMesh) -> SolverTime:
        """What the solver may still take on a view of a mesh."""
        if mesh not in self._solver_times:
            self._solver_times[mesh] = SolverTime(self.options.time_limit_s)
        return self._solver_times[mesh]

    def layers(self, variant: Variant, num_microbatches: int) -> list[ConditionedLayer] | None:
        """Every layer under a variant; None if one has no plan."""
        classes = self.source.classes
        found = [self.layer(LayerKey(c, variant, num_microbatches)) for c in classes]
        some = [layer for layer in found if layer is not None]
        return some if len(some) == len(found) else None

    def layer(self, key: LayerKey) -> ConditionedLayer | None:
        """One layer under a variant; None if it has no plan."""
        if key not in self._layers:
            c, variant, num_microbatches = key
            network = self._network(c, variant.mesh, variant.remat, num_microbatches)
            way = (c, variant.mesh, variant.remat, num_microbatches)
            # Without a price only memory is asked for (`alone`).
            is_timed = self.times is not None and variant.price != BytePrice()
            self._layers[key] = network and ConditionedLayer(
                network,
                variant.price,
                exact=False,
                time=self.solver_time(variant.mesh),
                seed=self.options.seed,
                times=partial(self.times, *way) if self.times and is_timed else None,
            )
        return self._layers[key]

    def networks(
        self, variant: Variant, num_microbatches: int, first: int, last: int
    ) -> list[LayerNetwork] | None:
        """All decisions about the layers of a run; None if one has no plan."""
        found: list[LayerNetwork] = []
        for c in self.source.classes[first : last + 1]:
            network = self._network(c, variant.mesh, variant.remat, num_microbatches)
            if network is None:
                return None
            found.append(network)
        return found

    def _network(
        self, c: int, mesh: LogicalMesh, remat: Remat, num_microbatches: int
    ) -> LayerNetwork | None:
        key = (c, mesh, remat, num_microbatches)
        if key not in self._networks:
            asked = self._layer(c, mesh, remat, num_microbatches)
            if asked is None:
                self._networks[key] = None
            else:
                piece, options, record = asked
                made = self._networks[key] = self._made.network(piece, mesh, options, record)
                if made is not None:
                    self._graph_keys[made] = (c, remat, num_microbatches)
        return self._networks[key]

    def _layer(
        self, c: int, mesh: LogicalMesh, remat: Remat, num_microbatches: int
    ) -> tuple[PieceGraph, IntraOptions, LayerRecord] | None:
        """A layer, how it is planned on a mesh, and its record; None if pins leave no plan."""
        key = (c, mesh, remat, num_microbatches)
        if key not in self._asked:
            try:
                piece, options = self.restricted(self.graph(c, remat, num_microbatches), mesh)
            except InfeasibleError:
                self._asked[key] = None
            else:
                # Elsewhere it changes nothing, and records serve plans with pins too.
                options = replace(options, rows_first=options.rows_first and has_many_axes(mesh))
                self._asked[key] = piece, options, self.records.of(piece, mesh, options)
        return self._asked[key]

    def graph_key(self, network: LayerNetwork) -> tuple[int, Remat, int]:
        """Arguments of `graph` for the graph of decisions about a layer."""
        return self._graph_keys[network]

    def graph(self, c: int, remat: Remat, num_microbatches: int) -> PieceGraph:
        """The graph to plan of a class of layers."""
        key = (c, remat, num_microbatches)
        if key not in self._graphs:
            self._graphs[key] = self.source.graph(c, c, num_microbatches, remat)
        return self._graphs[key]

    def trace(self, remat: Remat, num_microbatches: int) -> None:
        """Know the graphs of all layers.

        Raises:
            TraceError: the step does not separate into so many micro-batches.
        """
        for c in set(self.source.classes):
            self.graph(c, remat, num_microbatches)

    def has_runs(
        self, variant: Variant, num_microbatches: int, wanted: Bools | None = None
    ) -> bool:
        """Whether the costs of the runs that are wanted, of all by default, are known."""
        known = self._costs.get((variant, num_microbatches))
        return known is not None and bool((known[0] >= self._wanted(wanted)).all())

    def runs(
        self, variant: Variant, num_microbatches: int, wanted: Bools | None = None
    ) -> RunCosts | None:
        """Costs of runs of layers under a variant; None if it has none.

        Args:
            variant: How the layers are planned.
            num_microbatches: B.
            wanted: The runs that matter, (first layer, last layer); None for all.  What the others
                cost is infinite if it is not known.
        """
        key = (variant, num_microbatches)
        if not self.has_runs(variant, num_microbatches, wanted):
            asked = self._wanted(wanted)
            if key in self._costs:
                asked = asked | self._costs[key][0]
            self._costs[key] = (asked, self._composed(variant, num_microbatches, asked))
        return self._costs[key][1]

    def _wanted(self, wanted: Bools | None) -> Bools:
        count = len(self.source.classes)
        return np.ones((count, count), np.bool_) if wanted is None else wanted

    def run_plan(self, variant: Variant, num_microbatches: int, first: int, last: int) -> RunPlan:
        """The plans of the layers of a run that has costs."""
        key = (variant, num_microbatches, first, last)
        if key not in self._plans:
            self._plans[key] = self._run_plan(*key)
        return self._plans[key]

    def _run_plan(self, variant: Variant, num_microbatches: int, first: int, last: int) -> RunPlan:
        layers = self.layers(variant, num_microbatches)
        assert layers is not None
        states = cheapest_states(layers, first, last)
        arriving_s, returning_s = gathers(layers, first, last, states)
        return RunPlan(
            entries=tuple(entries(layers, first, states)),
            enters=layers[first].layer.entering.layouts[states[0]],
            leaves=layers[last].layer.leaving.layouts[states[-1]],
            arriving_s=arriving_s,
            returning_s=returning_s,
        )

    def held(self, variant: Variant, num_microbatches: int, first: int, last: int) -> Footprint:
        """Return what a device holds under the plans of a run that has costs.

        Args:
            variant: How the layers are planned.
            num_microbatches: B.
            first: First layer of the run.
            last: Last layer of the run.
        """
        return self.run_plan(variant, num_microbatches, first, last).memory

    def piece(self, layer: int, variant: Variant, num_microbatches: int) -> PieceGraph:
        """What is planned of a layer."""
        graph = self.graph(self.source.classes[layer], variant.remat, num_microbatches)
        return self.restricted(graph, variant.mesh)[0]

    def _composed(self, variant: Variant, count: int, wanted: Bools) -> RunCosts | None:
        layers = self.layers(variant, count)
        return None if layers is None else compose(layers, wanted, self.beside)

    def bounds(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> RunBounds | None:
        """What no run of layers is below on a mesh, at any price; None if no layer has a plan."""
        key = BoundsKey(mesh, remat, num_microbatches)
        if key not in self._bounds:
            classes = dict.fromkeys(self.source.classes)
            self.keep_bounds(key, {c: self.layer_bounds(c, *key) for c in classes})
        return self._bounds[key]

    def has_bounds(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> bool:
        """Return whether `bounds` has been computed for these arguments."""
        return BoundsKey(mesh, remat, num_microbatches) in self._bounds

    def remembers_bounds(self, key: BoundsKey) -> bool:
        """Return whether bounds follow from records, without any work.

        Args:
            key: What they are for.
        """
        layers = [self._layer(c, *key) for c in dict.fromkeys(self.source.classes)]
        return all(
            layer is None or layer[2].is_possible is False or layer[2].bounds is not None
            for layer in layers
        )

    def known(self, variant: Variant, num_microbatches: int) -> dict[int, LayerRecord]:
        """Return what is known at a variant's price, for each class of layers that may have plans.

        Args:
            variant: How the layers are planned.
            num_microbatches: B.
        """
        price = price_key(variant.price, self.options.seed)
        asked = {
            c: self._layer(c, variant.mesh, variant.remat, num_microbatches)
            for c in dict.fromkeys(self.source.classes)
        }
        return {c: layer[2].only(price) for c, layer in asked.items() if layer is not None}

    def learn(
        self, variant: Variant, num_microbatches: int, found: Mapping[int, LayerRecord]
    ) -> None:
        """Put what was found out elsewhere into the records of layers.

        Args:
            variant: How the layers are planned.
            num_microbatches: B.
            found: What was found out, for classes of layers.
        """
        for c, record in found.items():
            layer = self._layer(c, variant.mesh, variant.remat, num_microbatches)
            if layer is not None:
                layer[2].add(record)

    def remembers_layers(self, variant: Variant, num_microbatches: int) -> bool:
        """Return whether records know the layers at a variant's price.

        Args:
            variant: How the layers are planned.
            num_microbatches: B.
        """
        price = price_key(variant.price, self.options.seed)
        known = self.known(variant, num_microbatches).values()
        return all(record.prices[price].bound_s is not None for record in known)

    def record_bounds(self, key: BoundsKey, found: Mapping[int, LayerBounds | None]) -> None:
        """Put bounds that were computed elsewhere into the records of layers.

        Args:
            key: What they are for.
            found: Bounds of classes of layers; None for one that has no plan.
        """
        for c, bounds in found.items():
            if (layer := self._layer(c, *key)) is not None:
                record = layer[2]
                record.is_possible, record.bounds = bounds is not None, bounds

    def keep_bounds(self, key: BoundsKey, found: Mapping[int, LayerBounds | None]) -> None:
        """Remember bounds.

        Args:
            key: What they are for.
            found: Bounds of each class of layers; None for one that has no plan.
        """
        self._bounds[key] = bounds_of_runs([found[c] for c in self.source.classes])

    def layer_bounds(
        self, c: int, mesh: LogicalMesh, remat: Remat, num_microbatches: int
    ) -> LayerBounds | None:
        """What no plan of a class of layers is below; None if it has none."""
        layer = self._layer(c, mesh, remat, num_microbatches)
        if layer is None:
            return None
        piece, options, record = layer
        if record.bounds is None and record.is_possible is not False:
            # It is not kept: of the meshes that are bounded few are planned on.
            network = self._made.network(piece, mesh, options, record)
            return None if network is None else layer_bounds(network)
        return record.bounds

    def alone(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> RunCosts | None:
        """Costs of all runs on one device of a mesh, however much memory they take."""
        # Nothing is sent there: all links are the same.
        one = self._single.setdefault(
            mesh.device, replace(mesh, axes=(replace(mesh.axes[0], size=1),))
        )
        way = Variant(mesh=one, remat=remat, price=BytePrice())
        return self.runs(way, num_microbatches)
