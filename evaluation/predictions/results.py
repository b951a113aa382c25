"""What settings took beside what was predicted of them."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.predictions.process import MEASURED
from evaluation.predictions.settings import Setting
from meshwise.units import seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A setting that ran.

    Attributes:
        setting: The setting.
        predicted_s: Seconds of a step by its plan.
        seconds: Of each measured step.
        meshes: For each stage the shape of its mesh.
    """

    setting: Setting
    predicted_s: float
    seconds: tuple[float, ...]
    meshes: tuple[tuple[int, ...], ...]

    @property
    def measured_s(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s

    @property
    def noise(self) -> float:
        """How far the measured steps are from their median, at most; relative."""
        return max(abs(s / self.measured_s - 1) for s in self.seconds)

    def row(self) -> str:
        """Return it as a row of the page's table."""
        meshes = ", ".join("x".join(map(str, mesh)) for mesh in self.meshes)
        return (
            f"| {self.setting} | {meshes} | {seconds_text(self.predicted_s)} | "
            f"{seconds_text(self.measured_s)} | {self.ratio:.2f} | {self.noise:.0%} |"
        )


HEAD = (
    "| what | meshes | predicted | measured | measured / predicted | noise |",
    "| --- | --- | --- | --- | --- | --- |",
)


def from_line(line: str, settings: Sequence[Setting]) -> Result | None:
    """Return the result that a line of process 0 tells; None for any other line."""
    if not line.startswith(MEASURED):
        return None
    found: dict[str, Any] = json.loads(line.removeprefix(MEASURED))
    return Result(
        setting=settings[found["number"]],
        predicted_s=found["predicted_s"],
        seconds=tuple(found["seconds"]),
        meshes=tuple(tuple(mesh) for mesh in found["meshes"]),
    )


def findings(results: Sequence[Result]) -> list[str]:
    """Return what holds of all results, in sentences."""
    errors = sorted(abs(result.ratio - 1) for result in results)
    times = [result.measured_s for result in results]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(results, 2)
        if abs(a.measured_s - b.measured_s) > a.noise * a.measured_s + b.noise * b.measured_s
    ]
    right = sum((a.measured_s < b.measured_s) == (a.predicted_s < b.predicted_s) for a, b in pairs)
    close = sum(error <= 0.15 for error in errors)
    return [
        f"{close} of {len(errors)} steps take within 15 % of what was predicted (goal: 8 of 10), "
        f"the worst is {errors[-1]:.0%} off (goal: 30 %).",
        f"The slowest takes {max(times) / min(times):.1f} times as long as the fastest.",
        f"Of {len(pairs)} pairs that differ by more than their noise, {right} come in the order "
        "that was predicted.",
    ]
