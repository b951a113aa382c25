"""The guard of plans of one mesh: what a decider says it holds is counted again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.errors import PlanError
from meshwise.plan.fits import REPORT
from meshwise.plan.plan import Plan
from meshwise.planner.mesh_plan import check_plan_fits
from meshwise.planner.one_mesh import make_plan
from meshwise.request.plan_request import PlanRequest
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step

CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")
SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")


def step(w: Any, x: Any) -> Any:
    grad = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) @ w) ** 2))(w)
    return w - 0.1 * grad


@pytest.fixture(scope="module", params=[mw.IntraOp(), mw.Zero3(), mw.DataParallel()])
def planned(request: pytest.FixtureRequest) -> tuple[TracedStep, Plan]:
    args = (
        jax.ShapeDtypeStruct((64, 64), jnp.float32),
        jax.ShapeDtypeStruct((16, 64), jnp.float32),
    )
    opened = open_step(step, args, {}, SIGNATURE)

    def trace(num_microbatches: int, num_devices: int) -> TracedStep:
        return trace_step(opened, num_microbatches=num_microbatches, num_devices=num_devices)

    return make_plan(trace, PlanRequest(method=request.param, cluster=lambda: CLUSTER))


def limited(plan: Plan, **changes: int) -> Plan:
    (stage,) = plan.stages
    return replace(plan, stages=(replace(stage, **changes),))


def test_what_is_planned_fits(planned: tuple[TracedStep, Plan]) -> None:
    traced, plan = planned
    assert plan.stages[0].memory_bytes == CLUSTER.device.memory_bytes
    check_plan_fits(traced.graph, plan, REPORT)
    check_plan_fits(traced.graph, limited(plan, memory_bytes=plan.peak_bytes), REPORT)


def test_one_byte_too_much_is_refused(planned: tuple[TracedStep, Plan]) -> None:
    traced, plan = planned
    with pytest.raises(PlanError, match=f"{plan.peak_bytes} bytes.*please report this"):
        check_plan_fits(traced.graph, limited(plan, memory_bytes=plan.peak_bytes - 1), REPORT)


def test_a_peak_that_is_said_too_small_does_not_help(planned: tuple[TracedStep, Plan]) -> None:
    traced, plan = planned
    less = limited(
        plan,
        resident_bytes=0,
        temporary_bytes=plan.peak_bytes // 2,
        memory_bytes=plan.peak_bytes - 1,
    )
    with pytest.raises(PlanError, match=f"{plan.peak_bytes} bytes"):
        check_plan_fits(traced.graph, less, REPORT)
