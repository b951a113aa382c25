"""A double of the parallelised step: plain `jax.jit` on one device or data parallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax

from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.plan.counts.collectives import Collective
from meshwise.plan.decision import GraphDecision
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage
from meshwise.report.host_stats import HostStats
from meshwise.runtime.fidelity import StageFidelity, bytes_of, compiled_bytes_of
from meshwise.simulate.timeline import Event, MemoryStep, Timeline
from oracle.problem import QUICK_OPTIONS

DEVICE = DeviceSpec(
    name="pretended",
    memory_bytes=10**9,
    memory_bytes_per_s=1e9,
    flop_per_s=(("float32", 1e9),),
    source="made up",
)
AXIS = MeshAxis(name="x", size=1, latency_s=0.0, link_bytes_per_s=1e9)
PLAN = Plan(
    step_time_s=0.5,
    collectives=(Collective(kind="all-reduce", axes=("x",), group_size=1, num_bytes=7, count=2),),
    stages=(
        Stage(
            mesh=LogicalMesh(axes=(AXIS,), device=DEVICE),
            layers=(Layer(layer=0, equal_to=0, arguments=(), decision=0),),
            submesh=(1, 1),
            first_device=0,
            once_s=0.5,
            resident_bytes=0,
            temporary_bytes=1000,
            memory_bytes=DEVICE.memory_bytes,
            device_flop=1e6,
        ),
    ),
    decisions=(GraphDecision(inputs=(), operators=(), outputs=()),),
    formula_s=0.5,
    method="Pretended()",
    status="pretended",
)


TIMELINE = Timeline(
    step_time_s=0.5,
    bubble_share=0.25,
    busy_s=(0.375,),
    exposed_s=(0.0,),
    peak_bytes=(1000,),
    memory=((MemoryStep(0.0, 1000),),),
    events=(Event(0, "F", 0, 0, 0.125, 0.5),),
    transfers=(),
)


HOSTS = (
    HostStats(process=0, name="node0", step_s=0.5, late_s=0.0, busy_s=0.25, held_bytes=2**20),
    HostStats(process=1, name="node1", step_s=0.5, late_s=0.125, busy_s=0.25, held_bytes=2**20),
)


# A run makes its functions anew; equal ones need to be compiled only once for all tests.
_COMPILED: dict[str, Any] = {}


def compiled(fun: Any, *args: Any, donate_argnums: tuple[int, ...] = ()) -> Any:
    traced = jax.jit(fun, donate_argnums=donate_argnums).trace(*args)
    key = f"{traced.jaxpr} {donate_argnums}"
    if key not in _COMPILED:
        _COMPILED[key] = traced.lower().compile(compiler_options=dict(QUICK_OPTIONS))
    return _COMPILED[key]


@cache
def collective_bytes(fun: Any) -> Any:
    """Bytes of the collectives of a compiled function, whose text is read once for all tests."""
    return compiled_bytes_of(fun.as_text(), (1,))


class JitStep:
    def __init__(self, fun: Any, plan: Plan | None = None) -> None:
        self.fun = fun
        self.compiled: Any = None
        self.checkpoint: Path | None = None

    def __call__(self, state: Any, batch: Any) -> Any:
        if self.compiled is None:
            self.compiled = compiled(self.fun, state, batch, donate_argnums=(0,))
        return self.compiled(state, batch)

    def plan(self, state: Any, batch: Any) -> Plan:
        return PLAN

    def init(self, create_state: Any, key: Any, batch: Any) -> Any:
        return compiled(create_state, key)(key)

    def measured(self, state: Any, batch: Any) -> Any:
        return self(state, batch), TIMELINE

    def stats(self) -> dict[str, Any]:
        return {"hosts": HOSTS}

    def saved(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def fidelity(self, state: Any, batch: Any) -> tuple[StageFidelity, ...]:
        fun = compiled(self.fun, state, batch, donate_argnums=(0,))
        return (
            StageFidelity(
                predicted_peak_bytes=PLAN.peak_bytes,
                compiled_peak_bytes=1100,
                planned_bytes=bytes_of(PLAN.collectives),
                compiled_bytes=collective_bytes(fun),
            ),
        )


@dataclass
class Recorder:
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def on_start(self, options: Any, training: Any) -> None:
        self.events.append(("start", training.name))

    def on_finished(self, summary: Any, plan: Any) -> None:
        self.events.append(("finished", summary.steps_done))

    def on_plan(self, plan: Any, plan_s: float) -> None:
        self.events.append(("plan", plan))

    def on_state(self, state: Any, init_s: float) -> None:
        self.events.append(("state", state))

    def on_resume(self, step: int) -> None:
        self.events.append(("resume", step))

    def on_step(self, step: int, loss: float, step_s: float) -> None:
        self.events.append(("step", step, loss))

    def on_heldout(self, step: int, loss: float) -> None:
        self.events.append(("heldout", step, loss))

    def on_measured(self, step: int, timeline: Any, hosts: Any) -> None:
        self.events.append(("measured", step, timeline))

    def on_save(self, step: int, path: Path) -> None:
        self.events.append(("save", step))

    def on_unsaved(self, step: int, text: str) -> None:
        self.events.append(("unsaved", step, text))

    def on_damaged(self, step: int, path: Path, text: str) -> None:
        self.events.append(("damaged", step, path, text))

    def on_end(self, summary: Any) -> None:
        self.events.append(("end", summary))

    def on_sample(self, sample: Any) -> None:
        self.events.append(("sample", sample))

    def on_unsampled(self, text: str) -> None:
        self.events.append(("unsampled", text))

    def of(self, kind: str) -> list[Any]:
        return [event[1:] for event in self.events if event[0] == kind]
