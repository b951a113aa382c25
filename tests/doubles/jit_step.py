"""A double of the parallelised step: plain `jax.jit` on one device or data parallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax


@dataclass(frozen=True)
class FakePlan:
    step_time_s: float = 0.5
    peak_bytes: int = 1000
    collectives: tuple[Any, ...] = ()

    def explain(self) -> str:
        return "a fake plan"

    def to_json(self) -> str:
        return "{}"


class JitStep:
    def __init__(self, fun: Any) -> None:
        self.fun = jax.jit(fun, donate_argnums=0)

    def __call__(self, state: Any, batch: Any) -> Any:
        return self.fun(state, batch)

    def plan(self, state: Any, batch: Any) -> FakePlan:
        return FakePlan()

    def init(self, create_state: Any, key: Any) -> Any:
        return jax.jit(create_state)(key)

    def compiled_text(self, state: Any, batch: Any) -> dict[str, str]:
        return {"step": self.fun.lower(state, batch).compile().as_text()}

    def measured_peak_bytes(self, state: Any, batch: Any) -> int:
        return 1100


@dataclass
class Recorder:
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def on_start(self, options: Any, corpus: Any, num_params: int) -> None:
        self.events.append(("start", num_params))

    def on_plan(self, plan: Any, state: Any, plan_s: float) -> None:
        self.events.append(("plan", plan.explain()))

    def on_resume(self, step: int) -> None:
        self.events.append(("resume", step))

    def on_step(self, step: int, loss: float, step_s: float) -> None:
        self.events.append(("step", step, loss))

    def on_heldout(self, step: int, loss: float) -> None:
        self.events.append(("heldout", step, loss))

    def on_save(self, step: int, path: Path) -> None:
        self.events.append(("save", step))

    def of(self, kind: str) -> list[Any]:
        return [event[1:] for event in self.events if event[0] == kind]
