"""Settings for which an earlier planner returned pipelines that do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import meshwise as mw
from doubles.few import few
from doubles.perceptron import perceptron
from meshwise.errors import InfeasibleError
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan
from meshwise.plan.text.device_memory import plan_memory
from meshwise.planner.pipeline import plan_pipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.registry import named
from meshwise.trace.step import StepSignature
from meshwise.units import GIB, MIB, bytes_text

pytestmark = pytest.mark.usefixtures("compiled_kernels", "layers_known")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")


def planned(model: str, batch: int, dtype: str, **asked: Any) -> Plan:
    step, state, rows = model_step(model_config(model, dtype=dtype), batch).abstract
    request = PipelineRequest(**asked)
    return plan_pipeline(step, (state, rows), {}, SIGNATURE, request).plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch", "dtype", "cluster", "asked"),
    [
        ("llama-small", 64, "float16", "1x p3.8xlarge", {"memory_bytes": 20 * MIB}),
        ("llama-8b", 64, "bfloat16", "v5e-16", {"num_stages": 2}),
        ("llama-8b", 64, "float16", "v6e-8", {}),
        ("llama-8b", 64, "bfloat16", "v5e-16", {"schedules": named("1f1b")}),
        ("llama-8b", 256, "bfloat16", "v5e-16", {}),
    ],
)
def test_pipelines_that_did_not_fit_fit(
    model: str, batch: int, dtype: str, cluster: str, asked: dict[str, Any]
) -> None:
    where = mw.Cluster.virtual(cluster)
    plan = planned(model, batch, dtype, cluster=where, **asked)
    assert plan_memory(plan).fits
    limit = asked.get("memory_bytes", where.device.memory_bytes)
    assert plan.peak_bytes <= limit
    assert {stage.memory_bytes for stage in plan.stages} == {limit}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "dtype", "cluster", "asked"),
    [
        (256, "bfloat16", "v4-16", {"memory_bytes": 14 * GIB}),
        (
            64,
            "float16",
            "v5e-16",
            {"num_stages": 3, "use_all_devices": False, "memory_bytes": 7 * GIB},
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_memory_that_is_enough(
    batch: int, dtype: str, cluster: str, asked: dict[str, Any]
) -> None:
    asked["cluster"] = mw.Cluster.virtual(cluster)
    has = bytes_text(asked.get("memory_bytes", asked["cluster"].device.memory_bytes))
    with pytest.raises(
        InfeasibleError, match=f"no pipeline was found that fits into {has}"
    ) as caught:
        planned("llama-8b", batch, dtype, **asked)
    enough = int(re.findall(r"memory_bytes=(\d+)", str(caught.value))[0])
    plan = planned("llama-8b", batch, dtype, **asked | {"memory_bytes": enough})
    assert plan.peak_bytes <= enough


MADE: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "perceptron": lambda: perceptron((64,) * 5),
    "llama-tiny": lambda: model_step(model_config("llama-tiny"), 16).abstract,
}


@pytest.mark.parametrize("name", few(MADE, ["perceptron"]))
def test_stages_on_the_devices_of_a_process_fit(name: str) -> None:
    step, state, rows = MADE[name]()
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    method = mw.Auto(stages=2)

    def peaks(memory_bytes: int | None) -> tuple[int, ...]:
        parallel = mw.parallelize(
            step, method=method, cluster=cluster, num_microbatches=8, memory_bytes=memory_bytes
        )
        plan: Any = parallel.plan(state, rows)
        return plan.mesh_peak_bytes

    free = max(peaks(None))
    limit = int(0.8 * free)
    assert max(peaks(limit)) <= limit
