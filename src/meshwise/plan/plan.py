"""The plan as users have it: its fields, its text and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.plan.consistent import check_consistent
from meshwise.plan.files.json_form import fields_from_json, plan_to_json
from meshwise.plan.record import PlanRecord
from meshwise.plan.text.explain import explain
from meshwise.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(PlanRecord):
    """A plan for one step, on one mesh or as a pipeline; its fields are those of `PlanRecord`."""

    def explain(self, *, full: bool = False) -> str:
        """Return the plan as a text of at most 100 columns; it needs nothing but the plan.

        Args:
            full: Whether every layer, stage and argument has rows of its own. Else what is equal
                shares a row, and long tables say how many of their smallest rows are left out.
        """
        return explain(self, full=full)

    def __repr__(self) -> str:
        """Return one line: what is planned, where, and what it takes."""
        count = len(self.stages)
        parts = [
            *filter(None, (self.model,)),
            f"{count} stages" if count > 1 else "x".join(map(str, self.mesh.sizes)),
            *([] if self.cluster is None else [f"on {self.cluster.name}"]),
            f"{seconds_text(self.step_time_s)} a step",
            f"{bytes_text(self.peak_bytes)} a device",
        ]
        return f"<Plan: {', '.join(parts)}>"

    def __str__(self) -> str:
        """Return the text of `explain`."""
        return explain(self)

    def to_json(self) -> str:
        """Return the plan as JSON text; equal plans give equal bytes.

        Raises:
            PlanError: a number is infinite or not a number.
        """
        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the text of `to_json`, also of earlier versions.

        Raises:
            PlanError: naming the field that is missing, unknown or wrong.
        """
        plan = cls(**fields_from_json(text))
        check_consistent(plan)
        return plan
