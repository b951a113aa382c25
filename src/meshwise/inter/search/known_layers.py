"""What a plan says of planned layers: found out once, for all pipelines that have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.arrival_bytes import ArrivalBytes
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.inter.layer_cost.passes import pass_seconds, weight_seconds
from meshwise.inter.layer_cost.state_costs import Entry
from meshwise.inter.search.layer_work import state_arguments
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.counts.contents import Argument
from meshwise.plan.decision import GraphDecision
from meshwise.plan.verify import verify_decision
from meshwise.system.identity import Same


class PlannedLayer(NamedTuple):
    """A layer with its plan.

    Attributes:
        piece: The layer.
        entry: Its plan.
        mesh: Where it runs.
    """

    piece: PieceGraph
    entry: Entry
    mesh: LogicalMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What a plan says of a layer.

    Attributes:
        decision: Its decision.
        forward_s: Forward pass of one micro-batch.
        backward_s: Backward pass of one micro-batch.
        state: Its parameters and optimizer state, without names.
    """

    decision: GraphDecision
    forward_s: float
    backward_s: float
    state: tuple[Argument, ...]


class WeightsApart(NamedTuple):
    """A layer whose gradients of weights are a program of their own.

    Attributes:
        seconds: Of that program, for one micro-batch.
        held_bytes: What it needs of each micro-batch that waits for it.
        temporary_bytes: What a device holds on top at the peak of any program of the layer.
    """

    seconds: float
    held_bytes: int
    temporary_bytes: int


class KnownLayers:
    """Facts of planned layers."""

    def __init__(self) -> None:
        """Begin without any."""
        self._facts: dict[object, LayerFacts] = {}
        self._apart: dict[object, WeightsApart] = {}
        self._temporary: dict[object, int] = {}

    def facts(self, layer: PlannedLayer) -> LayerFacts:
        """Return the facts of a layer.

        Args:
            layer: The layer with its plan.

        Raises:
            PlanError: its decision is not one about its graph, which is an error of the planner.
        """
        key = _key(layer)
        if key not in self._facts:
            piece, entry, mesh = layer
            verify_decision(piece.graph, entry.decision, mesh)
            ahead, back = pass_seconds(piece, entry.decision, mesh, entry.loop_s)
            self._facts[key] = LayerFacts(
                decision=entry.decision,
                forward_s=ahead,
                backward_s=back,
                state=state_arguments(piece, entry.decision),
            )
        return self._facts[key]

    def weights_apart(self, layer: PlannedLayer, extra: ArrivalBytes) -> WeightsApart:
        """Return the layer with its gradients of weights apart.

        Args:
            layer: The layer with its plan.
            extra: Bytes of values of other layers, beside those that it reads.
        """
        key = _key(layer), extra
        if key not in self._apart:
            piece, entry, mesh = layer
            held = footprint(piece, entry.decision, mesh, splits_backward=True, extra=extra)
            backward_s = self.facts(layer).backward_s
            self._apart[key] = WeightsApart(
                seconds=weight_seconds(piece, entry.decision, mesh, backward_s),
                held_bytes=held.weight_bytes,
                temporary_bytes=held.temporary_bytes,
            )
        return self._apart[key]

    def temporary_bytes(self, layer: PlannedLayer, extra: ArrivalBytes) -> int:
        """Return what a device holds on top at the peak of any program of the layer.

        Args:
            layer: The layer with its plan.
            extra: Bytes of values of other layers, beside those that it reads.
        """
        if not extra:
            return layer.entry.memory.temporary_bytes
        key = _key(layer), extra
        if key not in self._temporary:
            piece, entry, mesh = layer
            held = footprint(piece, entry.decision, mesh, extra=extra)
            self._temporary[key] = held.temporary_bytes
        return self._temporary[key]


def _key(layer: PlannedLayer) -> object:
    """Return what is equal for layers with equal plans only."""
    entry = layer.entry
    return Same(layer.piece), layer.mesh, Same(entry.layer), entry.choice, entry.loop_s
