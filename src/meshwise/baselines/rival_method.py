"""The fastest plan of another method, to be shown beside the plan of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Where the seconds of a step go, on the mesh that works longest.

    Attributes:
        computes_s: In operators.
        collectives_s: In collectives.
        transfers_s: Waiting for transfers between stages.
        idle_s: Waiting for another reason: the bubble of the pipeline.
    """

    computes_s: float
    collectives_s: float
    transfers_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalMethod:
    """The fastest plan of a method, with the costs and the memory limit of the step's own plan.

    Attributes:
        name: The method.
        how: How it runs, or why it has no plan; empty where nothing fits.
        num_microbatches: B; None where it has no plan.
        step_time_s: Predicted seconds of a step; None where nothing fits.
        parts: Where these seconds go; None where nothing fits.
        peak_bytes: Bytes that the fullest device holds; where nothing fits, bytes that it would
            need at least; None where there is no plan at all.
    """

    name: str
    how: str = ""
    num_microbatches: int | None = None
    step_time_s: float | None = None
    parts: StepParts | None = None
    peak_bytes: int | None = None
