"""What a run ended with: numbers only, written as JSON next to the checkpoints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from meshwise.report.host_stats import HostStats
from meshwise.runtime.fidelity import StageFidelity
from meshwise.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """One stage; sizes are bytes of one device, collectives bytes a step by kind.

    `actual_busy_s`: seconds in which it works in the measured step; None if none was measured.
    """

    num_devices: int
    predicted_peak_bytes: int
    actual_peak_bytes: int
    predicted_collective_bytes: dict[str, int]
    actual_collective_bytes: dict[str, int]
    actual_busy_s: float | None = None

    @classmethod
    def of(
        cls, num_devices: int, found: StageFidelity, stage: int, timeline: Timeline | None
    ) -> Self:
        """Return a stage from what the step says of itself, and what one of its runs did."""
        busy: float | None = None
        if timeline is not None:
            busy = sum(e.end_s - e.start_s for e in timeline.events if e.stage == stage)
        return cls(
            num_devices=num_devices,
            predicted_peak_bytes=found.predicted_peak_bytes,
            actual_peak_bytes=found.compiled_peak_bytes,
            predicted_collective_bytes=dict(found.planned_bytes),
            actual_collective_bytes=dict(found.compiled_bytes),
            actual_busy_s=busy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSummary:
    """The closing summary.

    What is said of a model and its text is None for a step of the user's own, which `step` names.
    Losses of a model are in nats per byte, and not rounded; `first_loss` and `last_loss` are means
    of `loss_steps` steps, ten at most, `final_loss` is that of the last step.  Times are seconds,
    sizes bytes of one device; collectives are bytes a step by kind, all stages together.
    `schedule` is `one-program` on one mesh.  `is_median_measured`: whether `median_step_s` is of
    the step that was timed mesh by mesh, which is slower, since there was no other.  `hosts`: for
    each process of the job what it did and holds; none where no step ran in this call.
    `first_save_s` is the part of `checkpoints_s` in which the
    first checkpoint of this call was begun; Orbax starts then.
    """

    step: str | None = None
    model: str | None = None
    num_parameters: int | None = None
    text: str | None = None
    train_bytes: int | None = None
    heldout_bytes: int | None = None
    num_devices: int
    method: str
    first_step: int = 0
    steps_done: int
    is_complete: bool
    first_loss: float
    last_loss: float
    loss_steps: int = 1
    final_loss: float | None = None
    heldout_loss: float | None = None
    tokens_per_s: float | None = None
    predicted_step_s: float
    median_step_s: float
    is_median_measured: bool
    predicted_peak_bytes: int
    actual_peak_bytes: int
    predicted_collective_bytes: dict[str, int]
    actual_collective_bytes: dict[str, int]
    num_microbatches: int
    schedule: str
    stages: tuple[StageSummary, ...]
    hosts: tuple[HostStats, ...] = ()
    checkpoint: str = ""
    plan_s: float = 0.0
    init_s: float = 0.0
    steps_s: float = 0.0
    checkpoints_s: float = 0.0
    first_save_s: float = 0.0
    wall_s: float = 0.0

    def to_json(self) -> str:
        """Return the summary as indented JSON with sorted keys, without what is None."""
        told = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(told, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote.

        Args:
            text: The summary as JSON.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        told: dict[str, Any] = json.loads(text)
        stages = tuple(StageSummary(**stage) for stage in told.pop("stages"))
        hosts = tuple(HostStats(**host) for host in told.pop("hosts"))
        return cls(**told, stages=stages, hosts=hosts)


def total_bytes(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the bytes by kind of collective, all stages together."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))
