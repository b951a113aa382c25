"""Pipelines that a search simulated, in the numbers by which they are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan:
    """One pipeline that was simulated.

    Attributes:
        schedule: Name by which a user asks for its schedule.
        num_stages: Its stages.
        num_microbatches: In how many parts the batch runs.
        step_time_s: Seconds of a step by simulation.
        formula_s: The same by the formula of the search.
    """

    schedule: str
    num_stages: int
    num_microbatches: int
    step_time_s: float
    formula_s: float


def best_by_schedule(found: Iterable[SimulatedPlan]) -> tuple[SimulatedPlan, ...]:
    """Return the fastest of each schedule, fastest first.

    Args:
        found: The pipelines.
    """
    best: dict[str, SimulatedPlan] = {}
    for one in sorted(found, key=lambda one: one.step_time_s):
        best.setdefault(one.schedule, one)
    return tuple(best.values())
