"""Layers whose programs are measured: by a clock that is made up, and once by a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.layered_steps import SIGNATURE, Step
from meshwise.calibrate.layer_times import Measure
from meshwise.calibrate.timed_program import Exported, Measurable
from meshwise.calibrate.workers import Workers
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, PlanError, ProgramError
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B

pytestmark = pytest.mark.usefixtures("compiled_kernels")

WIDTH = 8


@pytest.fixture(scope="module")
def case() -> tuple[Step, tuple[Any, ...]]:
    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean((x - batch["y"]) ** 2)

    def step(params: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, batch)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)], value

    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)), jnp.float32) for _ in range(4)]
    return step, (params, {k: jnp.ones((8, WIDTH), jnp.float32) for k in "xy"})


def planned(case: Any, measure: bool | Measure, hosts: int = 2) -> PlannedPipeline:
    step, args = case
    request = PipelineRequest(
        cluster=ClusterSpec.virtual(f"{hosts}x p3.2xlarge"),
        num_layers=4,
        num_microbatches=(2,),
        num_stages=min(hosts, 2),
        remats=("none",),
        schedules=(ONE_F_ONE_B, EAGER),
        measure=measure,
    )
    return plan_pipeline(step, args, {}, SIGNATURE, request)


class MadeUp:
    """Says how long programs take by their names; remembers them."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.asked: list[str] = []
        self.programs: list[Measurable] = []

    def __call__(self, programs: Sequence[Measurable]) -> list[float]:
        self.programs += programs
        self.asked += [p.name for p in programs]
        return [self.seconds.get(p.name.partition(" of ")[0], 0.0) for p in programs]


def test_measured_seconds_are_those_of_the_plan(case: Any) -> None:
    measure = MadeUp({"forward": 1.0, "backward": 2.0, "apply": 0.25})
    found = planned(case, measure)
    for stage in found.plan.stages:
        count = stage.last_layer - stage.first_layer + 1
        assert stage.forward_s + stage.backward_s == pytest.approx(3.0 * count)
        assert stage.once_s == pytest.approx(0.25 * count)
    # As even as they can be: 2 layers of 3 s for each of 2 micro-batches and one to fill.
    assert [s.last_layer for s in found.plan.stages] == [1, 3]
    assert found.plan.step_time_s == pytest.approx(6.0 * 3 + 0.5, rel=1e-3)
    assert "others bounded by the model" in found.plan.space
    assert len(measure.asked) == len(set(measure.asked))


def test_slow_layers_get_stages_with_fewer(case: Any) -> None:
    def uneven(programs: Sequence[Measurable]) -> list[float]:
        return [_slow_first(p.name) for p in programs]

    assert planned(case, uneven).plan.stages[0].last_layer == 0


def _slow_first(name: str) -> float:
    if not name.startswith("forward"):
        return 0.0
    return 10.0 if name.endswith("layer 0") else 3.0


def test_the_model_needs_no_device(case: Any) -> None:
    # More than there are here.
    assert planned(case, measure=False, hosts=16).plan.step_time_s > 0
    with pytest.raises(ClusterError, match="the plan needs 16 devices"):
        planned(case, MadeUp({}), hosts=16)


def test_only_layers_of_pipelines_are_measured() -> None:
    with pytest.raises(PlanError, match="layers of pipelines are measured; give stages too"):
        mw.Auto(measure=True)


def test_a_process_times_programs(case: Any) -> None:
    measure = MadeUp({})
    planned(case, measure)
    some = [p for p in measure.programs if p.name == "backward of layer 0"]
    with Workers(1) as workers:
        (seconds,) = workers(some)
        assert 0 < seconds < 60
        broken = Measurable(name="nothing", key="k", export=lambda: _broken(some[0]))
        with pytest.raises(ProgramError, match="nothing cannot be measured"):
            workers([broken])


def _broken(program: Measurable) -> Exported:
    """On a mesh of another shape."""
    exported = program.export()
    return exported._replace(sizes=(1, *exported.sizes), names=("other", *exported.names))


def test_keys_tell_programs_apart(case: Any) -> None:
    measure = MadeUp({})
    planned(case, measure)
    keys = {p.name: p.key for p in measure.programs}
    assert keys["forward of layer 0"] != keys["backward of layer 0"]
    again = MadeUp({})
    planned(case, again)
    assert {p.name: p.key for p in again.programs} == keys
    assert jax.devices()[0].platform == "cpu"
