"""What one method answered in one setting, and its JSON form."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

FORMAT = "meshwise-bench-result"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage, or one chunk where stages interleave.

    Attributes:
        first_layer: First layer.
        last_layer: Last layer, included.
        submesh: Hosts, devices of each.
        mesh: Sizes of the logical mesh.
        remat: What the backward pass computes again.
        microbatch_s: Forward and backward of one micro-batch; None where it is not known.
        once_s: Once a step; None likewise.
    """

    first_layer: int
    last_layer: int
    submesh: tuple[int, int]
    mesh: tuple[int, ...]
    remat: str
    microbatch_s: float | None = None
    once_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The best plan of a method; what is simulated is not measured.

    Attributes:
        step_time_s: As simulated; infinite if nothing fits.
        peak_bytes: As simulated, of the worst device.
        num_microbatches: B.
        chosen: The plan in a few words.
        stages: In the order of the layers.
        why: Why there is no plan; empty if there is one.
        text: The plan for people; empty where a method has none.
        by_way: Simulated seconds of a step with each way to send between stages; of our plans only.
    """

    step_time_s: float
    peak_bytes: int = 0
    num_microbatches: int = 0
    chosen: str = ""
    stages: tuple[StageRow, ...] = ()
    why: str = ""
    text: str = ""
    by_way: tuple[tuple[str, float], ...] = ()

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return math.isfinite(self.step_time_s)

    @classmethod
    def nothing(cls, why: str) -> Answer:
        """There is no plan."""
        return cls(step_time_s=math.inf, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An answer with where it comes from.

    Attributes:
        key: Digest of model, cluster, options, method and code.
        setting: Name of the setting.
        method: Name of the method.
        num_devices: GPUs.
        flop: Of a step, by the paper's count.
        microbatches: Values of B that were tried; None for all powers of two.
        answer: What was found.
        tracing_s: Wall time from the model to its layers; shared by the methods of a setting.
        planning_s: Wall time of the method.
        planning_cpu_s: CPU time of it, all threads.
        code: Digest of the code that planned.
        created: Date and time, in UTC.
    """

    key: str
    setting: str
    method: str
    num_devices: int
    flop: float
    microbatches: tuple[int, ...] | None
    answer: Answer
    tracing_s: float
    planning_s: float
    planning_cpu_s: float
    code: str
    created: str

    @property
    def flop_per_s(self) -> float:
        """Aggregate FLOP/s by the paper's count; 0 without a plan."""
        return self.flop / self.answer.step_time_s

    def to_json(self) -> str:
        """As a file has it."""
        data = dataclasses.asdict(self)
        if not self.answer.fits:
            data["answer"]["step_time_s"] = None
        return json.dumps({"format": FORMAT, **data}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read `to_json`.

        Raises:
            ValueError: it is something else.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            if data.pop("format", None) != FORMAT:
                raise ValueError(f"not of format {FORMAT}")
            answer = data.pop("answer")
            rows = answer.pop("stages")
            ways = tuple((str(way), float(s)) for way, s in answer.pop("by_way", ()))
            seconds = answer.pop("step_time_s")
            stages = tuple(
                StageRow(**{**row, "submesh": tuple(row["submesh"]), "mesh": tuple(row["mesh"])})
                for row in rows
            )
            counts = data.pop("microbatches")
            step_time_s = math.inf if seconds is None else seconds
            return cls(
                answer=Answer(stages=stages, step_time_s=step_time_s, by_way=ways, **answer),
                microbatches=None if counts is None else tuple(counts),
                **data,
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a result of a benchmark: {error}") from error
