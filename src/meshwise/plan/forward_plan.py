"""The plan of a step without gradients in stages: a plan of one mesh for each."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.plan.plan import Plan
from meshwise.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStagePlan:
    """One stage.

    Attributes:
        stage: Its number in the pipeline that is followed.
        first_device: Number of its first device in the cluster.
        plan: Of its program, on the stage's logical mesh.
        sent_bytes: Of the values that other stages have of it, each counted once a stage.
        beside_bytes: Of the parameters of other stages that one of its devices holds meanwhile.
    """

    stage: int
    first_device: int
    plan: Plan
    sent_bytes: int
    beside_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPlan:
    """A plan of a step without gradients on the meshes of a pipeline; only numbers and texts.

    The stages of one call run one after the other; calls that do not wait for each other's results
    overlap.

    Attributes:
        stages: In the order in which they run; stages that compute nothing are left out.
        warnings: What the user should know.
    """

    stages: tuple[ForwardStagePlan, ...]
    warnings: tuple[str, ...] = ()

    @property
    def step_time_s(self) -> float:
        """Predicted seconds of one call: all stages, without the transfers between them."""
        return sum(stage.plan.step_time_s for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory of one device of the fullest stage, for this step alone."""
        return max(stage.plan.peak_bytes + stage.beside_bytes for stage in self.stages)

    def explain(self) -> str:
        """The plan as text."""
        lines = [
            f"{len(self.stages)} stages, one after the other: {seconds_text(self.step_time_s)} a "
            f"call without transfers, {bytes_text(self.peak_bytes)} on a device at most"
        ]
        for stage in self.stages:
            lines += [
                "",
                f"Stage {stage.stage}, from device {stage.first_device}; sends "
                f"{bytes_text(stage.sent_bytes)}",
                "",
                stage.plan.explain().rstrip("\n"),
            ]
        if self.warnings:
            lines += ["", "Warnings", *(f"- {text}" for text in self.warnings)]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        """As `explain`."""
        return self.explain()
