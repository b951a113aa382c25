"""A pipeline that was found, and what it was made from."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.plan.decision import GraphDecision
from meshwise.plan.plan import Plan
from meshwise.simulate.simulated_plan import SimulatedPlan
from meshwise.simulate.timeline import Timeline
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import OpenStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A pipeline that was found.

    Attributes:
        layers: The layers of the step.
        plan: Its stages.
        timeline: A simulated step.
        decisions: For each stage the plans of its layers.
        is_tight: Whether plans that hold as little as they can were among those that were searched.
        simulated: The best of each schedule that was simulated, fastest first.
    """

    layers: Layering
    plan: Plan
    timeline: Timeline
    decisions: tuple[tuple[GraphDecision, ...], ...]
    is_tight: bool = False
    simulated: tuple[SimulatedPlan, ...] = ()

    @property
    def user(self) -> OpenStep:
        """The user's step."""
        assert self.layers.ends is not None
        return self.layers.ends.original
