"""The fastest plan of another method, to be shown beside the plan of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalMethod:
    """The fastest plan of a method, with the costs and the memory limit of the step's own plan.

    Attributes:
        name: The method.
        how: How it runs, or why it has no plan; empty where nothing fits.
        step_time_s: Seconds of a step, simulated if the step's own plan is a pipeline; None where
            nothing fits.
        peak_bytes: Bytes that the fullest device holds; where nothing fits, bytes that it would
            need at least; None where there is no plan at all.
    """

    name: str
    how: str = ""
    step_time_s: float | None = None
    peak_bytes: int | None = None
