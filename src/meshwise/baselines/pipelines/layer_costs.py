"""Costs of layers and of runs of layers that are planned as a method does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwise.assignment.solver_time import SolverTime
from meshwise.baselines.pipelines.layer_methods import (
    ALPA_INTRA_OP,
    INTRA_OP,
    LayerMethod,
    restricted_layer,
)
from meshwise.baselines.pipelines.layer_pieces import LayerPieces
from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.layer_cost.layer_network import LayerNetwork
from meshwise.inter.layer_cost.passes import pass_seconds
from meshwise.inter.layer_cost.recomputation import again_s, repeated_moves
from meshwise.inter.layer_cost.run_costs import cheapest_states, compose, gathers
from meshwise.inter.layer_cost.state_costs import ConditionedLayer, Entry
from meshwise.inter.stages.stage_problem import StageCosts
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.options import IntraOptions
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import Region, regions
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.counts.collectives import collective_s, collectives, sent
from meshwise.plan.decision import GraphDecision
from meshwise.simulate.chunks import Chunk
from meshwise.system.identity import Same

# What puts a batch together where an operator needs all of it.
_CONCEDED = frozenset(("all-gather",))
_MEMORY = ("resident_bytes", "microbatch_bytes", "temporary_bytes")
_NAMES = ("microbatch_s", "gather_s", "once_s", *_MEMORY)


class MethodCosts:
    """Plans layers as one method does.

    Attributes:
        method: A method of `layer_methods`.
        source: The layers.
    """

    def __init__(
        self,
        method: LayerMethod,
        source: LayerSource,
        options: IntraOptions,
        evaluators: Evaluators | None = None,
        pieces: LayerPieces | None = None,
    ) -> None:
        """Plan nothing yet; methods over the same layers may share evaluators and pieces."""
        self.method = method
        self.source = source
        self.options = options
        self._pieces = LayerPieces(source) if pieces is None else pieces
        self._evaluators = Evaluators() if evaluators is None else evaluators
        self._networks: dict[object, LayerNetwork | None] = {}
        self._layers: dict[object, ConditionedLayer | None] = {}
        self._known: dict[Same, Chunk] = {}

    def run(self, variant: Variant, num_microbatches: int, first: int, last: int) -> Chunk | None:
        """Return the cost of the layers `first` to `last`; None if they have no plan."""
        layers = self._conditioned(variant, num_microbatches, first, last)
        if layers is None:
            return None
        while True:
            states = cheapest_states(layers, 0, last - first)
            steps = list(zip(layers, states[:-1], states[1:], strict=True))
            missing = [step for step in steps if not step[0].is_exact[step[1], step[2]]]
            if not missing:
                break
            for layer, enters, leaves in missing:
                layer.sharpen(enters, leaves)
        plans = [layer.entry(enters, leaves) for layer, enters, leaves in steps]
        found = [
            self._cost(first + k, plan, variant, num_microbatches)
            for k, plan in enumerate(plans)
            if plan is not None
        ]
        if len(found) < len(plans):
            return None
        arriving_s, returning_s = gathers(layers, 0, -1, states)
        return replace(summed(found), forward_gather_s=arriving_s, backward_gather_s=returning_s)

    def table(
        self,
        submeshes: Sequence[StageSubmesh],
        variants: Sequence[Sequence[Variant]],
        num_microbatches: int,
    ) -> StageCosts:
        """Costs of every run of layers on every submesh, as `LazyTable.costs` has them."""
        count = len(self.source.classes)
        shape = (count, count, len(submeshes), max(map(len, variants)))
        arrays = {name: np.full(shape, np.inf) for name in _NAMES}
        for m, ways in enumerate(variants):
            for v, variant in enumerate(ways):
                layers = self._conditioned(variant, num_microbatches, 0, count - 1)
                if layers is None:
                    continue
                runs = compose(layers)
                for first, last in np.argwhere(np.isfinite(runs.cost_s)).tolist():
                    cost = self.run(variant, num_microbatches, first, last)
                    if cost is not None:
                        for name in _NAMES:
                            arrays[name][first, last, m, v] = getattr(cost, name)
        return StageCosts(submeshes=tuple(submeshes), **arrays)

    def _piece(
        self, layer: int, variant: Variant, num_microbatches: int
    ) -> tuple[PieceGraph, tuple[Region, ...]]:
        """Return the graph of a layer and its regions."""
        return self._pieces.of(layer, num_microbatches, variant.remat)

    def _conditioned(
        self, variant: Variant, num_microbatches: int, first: int, last: int
    ) -> list[ConditionedLayer] | None:
        found: list[ConditionedLayer] = []
        for c in self.source.classes[first : last + 1]:
            key = (c, variant, num_microbatches)
            if key not in self._layers:
                self._layers[key] = self._planned(c, variant, num_microbatches)
            layer = self._layers[key]
            if layer is None:
                return None
            found.append(layer)
        return found

    def _planned(
        self, layer: int, variant: Variant, num_microbatches: int
    ) -> ConditionedLayer | None:
        """Return a layer that has a plan, if need be with an all-gather that the method forbids."""
        for conceded in (frozenset[str](), _CONCEDED):
            key = (layer, variant.mesh, variant.remat, num_microbatches, conceded)
            if key not in self._networks:
                self._networks[key] = self._network(layer, variant, num_microbatches, conceded)
            network = self._networks[key]
            if network is None:
                continue
            # As in the search: what is free is not proved entry by entry.
            exact = self.method not in (INTRA_OP, ALPA_INTRA_OP)
            found = ConditionedLayer(
                network,
                variant.price,
                exact=exact,
                time=SolverTime(self.options.time_limit_s),
                seed=self.options.seed,
            )
            if _has_plan(found):
                return found
            if not network_forbids(self.method):
                return None
        return None

    def _network(
        self, layer: int, variant: Variant, num_microbatches: int, conceded: frozenset[str]
    ) -> LayerNetwork | None:
        piece, parts = self._piece(layer, variant, num_microbatches)
        try:
            return restricted_layer(
                self.method,
                piece,
                variant.mesh,
                self.options,
                conceded=conceded,
                parts=parts,
                evaluators=self._evaluators,
            )
        except InfeasibleError:
            return None

    def _cost(self, layer: int, plan: Entry, variant: Variant, num_microbatches: int) -> Chunk:
        """Return the cost of a layer's plan; a run has many layers with one plan."""
        key = Same(plan)
        if key not in self._known:
            c = self.source.classes[layer]
            self._known[key] = self._priced(c, plan, variant, num_microbatches)
        return self._known[key]

    def _priced(self, layer: int, plan: Entry, variant: Variant, num_microbatches: int) -> Chunk:
        piece, _ = self._piece(layer, variant, num_microbatches)
        loop_s, once_s = plan.loop_s, plan.once_s
        if self.method == ALPA_INTRA_OP:
            # It was chosen by communication alone; it costs what it costs.
            loop_s, once_s = seconds_of(piece, plan.decision, variant.mesh)
        forward_s, backward_s = pass_seconds(piece, plan.decision, variant.mesh, loop_s)
        return Chunk(
            forward_s=forward_s,
            backward_s=backward_s,
            once_s=once_s,
            resident_bytes=plan.memory.resident_bytes,
            microbatch_bytes=plan.memory.microbatch_bytes,
            temporary_bytes=plan.memory.temporary_bytes,
            collective_s=math.fsum(
                item.count * collective_s(item, variant.mesh)
                for item in collectives(piece.graph, plan.decision, variant.mesh)
            ),
        )


def network_forbids(method: LayerMethod) -> bool:
    """Return whether a method forbids what may be conceded to it."""
    return method in ("DataParallel", "Megatron", "MegatronSharded")


def _has_plan(layer: ConditionedLayer) -> bool:
    """Whether some entry is finite: a bound that no plan reaches falls away when it is solved."""
    while np.isfinite(layer.bound_s).any():
        enters, leaves = cheapest_states([layer], 0, 0)
        if layer.is_exact[enters, leaves]:
            return True
        layer.sharpen(enters, leaves)
    return False


def seconds_of(
    piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh
) -> tuple[float, float]:
    """Return what a decision about layers really costs.

    Args:
        piece: The layers.
        decision: The decision about their graph.
        mesh: Where they run.

    Returns:
        Seconds of all micro-batches, recomputation included, and of what runs once a step.
    """
    parts = regions(piece.graph)
    once_s = step_time_s(piece.graph, decision, mesh, parts=parts[:1])
    loop_s = step_time_s(piece.graph, decision, mesh, parts=parts[1:])
    in_loop_s, after_s = (
        sum(
            move.times * collective_time_s(x.kind, x.axes, x.num_bytes, mesh, sharers=x.sharers)
            for move in moves
            for x in sent(move, mesh)
        )
        for moves in repeated_moves(piece, decision)
    )
    loop_s += piece.num_microbatches * again_s(piece, decision, mesh) + in_loop_s
    return loop_s, once_s + after_s


def summed(costs: Sequence[Chunk]) -> Chunk:
    """Several runs on one mesh as one."""
    return Chunk(
        forward_s=sum(c.forward_s for c in costs),
        backward_s=sum(c.backward_s for c in costs),
        once_s=sum(c.once_s for c in costs),
        resident_bytes=sum(c.resident_bytes for c in costs),
        microbatch_bytes=sum(c.microbatch_bytes for c in costs),
        temporary_bytes=max(c.temporary_bytes for c in costs),
        forward_gather_s=sum(c.forward_gather_s for c in costs),
        backward_gather_s=sum(c.backward_gather_s for c in costs),
        collective_s=sum(c.collective_s for c in costs),
    )
