"""What another method can do for a step that has a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalMethod:
    """The fastest that a method can do for a step, with the costs and the memory of its plan.

    Attributes:
        name: The method.
        how: How it runs, or why it has no plan; empty where nothing fits.
        step_time_s: Seconds of a step, simulated beside a pipeline; None where nothing fits.
        peak_bytes: What the fullest device holds, or where nothing fits needs at least; None where
            there is no plan.
    """

    name: str
    how: str = ""
    step_time_s: float | None = None
    peak_bytes: int | None = None
