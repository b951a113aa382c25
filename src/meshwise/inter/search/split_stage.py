"""A stage under a schedule that runs gradients of weights apart: its times and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.inter.layer_cost.arrival_bytes import ArrivalBytes
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.inter.layer_cost.passes import weight_seconds
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Stage, WeightGradients
from meshwise.system.identity import Same


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayer:
    """A planned layer of the stage.

    Attributes:
        piece: The layer.
        decision: Its plan.
        extra: Bytes of values of other layers, beside those that it reads.
        backward_s: Seconds of its whole backward pass, for one micro-batch.
    """

    piece: PieceGraph
    decision: GraphDecision
    extra: ArrivalBytes
    backward_s: float


def with_weights_apart(stage: Stage, layers: Sequence[SplitLayer]) -> Stage:
    """The stage with its gradients of weights apart, none of which waits yet."""
    seconds = 0.0
    late_bytes = temporary_bytes = 0
    # Equal layers share one plan.
    known: dict[tuple[Same, ArrivalBytes], tuple[float, int, int]] = {}
    for layer in layers:
        key = (Same(layer.decision), layer.extra)
        if key not in known:
            held = footprint(
                layer.piece, layer.decision, stage.mesh, splits_backward=True, extra=layer.extra
            )
            late_s = weight_seconds(layer.piece, layer.decision, stage.mesh, layer.backward_s)
            known[key] = (late_s, held.weight_bytes, held.temporary_bytes)
        late_s, held_bytes, temporary = known[key]
        seconds, late_bytes = seconds + late_s, late_bytes + held_bytes
        temporary_bytes = max(temporary_bytes, temporary)
    weights = WeightGradients(seconds=seconds, held_bytes=late_bytes, waiting=0)
    return replace(stage, temporary_bytes=temporary_bytes, weights=weights)
