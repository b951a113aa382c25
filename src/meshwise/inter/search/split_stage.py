"""A stage under a schedule that runs gradients of weights apart: its times and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.errors import InfeasibleError
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.inter.layer_cost.passes import weight_seconds
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Stage, WeightGradients
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.weight_delays import at_most_held
from meshwise.system.identity import Same
from meshwise.units import bytes_text


class WaitingWeightsError(InfeasibleError):
    """What waits for gradients of weights does not fit.

    Attributes:
        missing_share: Of the memory of a device, what a stage needs beyond it.
    """

    def __init__(self, text: str, missing_share: float) -> None:
        """Say how much is missing."""
        super().__init__(text)
        self.missing_share = missing_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayer:
    """A planned layer of the stage.

    Attributes:
        piece: The layer.
        decision: Its plan.
        backward_s: Seconds of its whole backward pass, for one micro-batch.
    """

    piece: PieceGraph
    decision: GraphDecision
    backward_s: float


def with_weights_apart(stage: Stage, layers: Sequence[SplitLayer]) -> Stage:
    """The stage with its gradients of weights apart, none of which waits yet."""
    seconds = 0.0
    late_bytes = temporary_bytes = 0
    # Equal layers share one plan.
    known: dict[Same, tuple[float, int, int]] = {}
    for layer in layers:
        key = Same(layer.decision)
        if key not in known:
            held = footprint(layer.piece, layer.decision, stage.mesh, splits_backward=True)
            late_s = weight_seconds(layer.piece, layer.decision, stage.mesh, layer.backward_s)
            known[key] = (late_s, held.weight_bytes, held.temporary_bytes)
        late_s, held_bytes, temporary = known[key]
        seconds, late_bytes = seconds + late_s, late_bytes + held_bytes
        temporary_bytes = max(temporary_bytes, temporary)
    weights = WeightGradients(seconds=seconds, held_bytes=late_bytes, waiting=0)
    return replace(stage, temporary_bytes=temporary_bytes, weights=weights)


def at_peak(stage: Stage, schedule: Schedule, number: int) -> Stage:
    """The stage with the micro-batches that it holds when it holds most.

    Args:
        stage: The stage, its gradients of weights apart.
        schedule: Of the pipeline; it splits the backward pass.
        number: Of the stage.

    Raises:
        WaitingWeightsError: what waits for gradients of weights does not fit.
    """
    found = at_most_held(stage, schedule, number)
    late = found.weights
    assert late is not None
    if found.peak_bytes > found.memory_bytes:
        raise WaitingWeightsError(
            f"stage {number} needs {bytes_text(found.peak_bytes)} a device under schedule "
            f"{schedule.name} with gradients of weights apart, and there are "
            f"{bytes_text(found.memory_bytes)}: {late.waiting} micro-batches wait for them with "
            f"{bytes_text(late.held_bytes)} each; a schedule that computes them with the gradients "
            "of activations, as 1f1b, needs no room for that",
            found.peak_bytes / found.memory_bytes - 1.0,
        )
    return found
