"""A setting of a few seconds, and results made by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from evaluation.paper.result import Answer, Result, StageRow
from evaluation.paper.settings import Setting

TOY = Setting(
    name="toy",
    model="gpt-mini",
    num_devices=2,
    batch=16,
    changes=(("num_layers", 2), ("hidden", 2048), ("num_heads", 16), ("seq_len", 512)),
    microbatches=(4,),
)
STAGE = StageRow(first_layer=0, last_layer=3, submesh=(1, 2), mesh=(2, 1), remat="full")


def result(setting: str, method: str, step_time_s: float, **changes: Any) -> Result:
    """A result with a plan, or without one where the time is infinite."""
    answer = (
        Answer(
            step_time_s=step_time_s,
            peak_bytes=2**30,
            num_microbatches=8,
            chosen="1 x (1,2) as 2x1",
            stages=(STAGE, dataclasses.replace(STAGE, microbatch_s=0.5, once_s=0.25)),
            text="the plan",
        )
        if math.isfinite(step_time_s)
        else Answer.nothing("layer 1 does | not fit")
    )
    made = Result(
        key="0",
        setting=setting,
        method=method,
        num_devices=4,
        flop=3e15,
        microbatches=None,
        answer=answer,
        tracing_s=1.0,
        planning_s=2.0,
        planning_cpu_s=3.0,
        code="somewhere",
        created="2026-11-22T00:00:00+00:00",
    )
    return dataclasses.replace(made, **changes)
