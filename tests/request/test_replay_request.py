"""What is asked beside a plan that is replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.errors import InfeasibleError, PlanError

CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")
STATE = {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
BATCH = jax.ShapeDtypeStruct((16, 64), jnp.float32)


def step(state: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w) @ w) ** 2)

    grad = mw.grad(loss)(state["w"])
    return {"w": state["w"] - 0.1 * grad}


@pytest.fixture(scope="module", params=["mesh", "pipeline"])
def plan(request: pytest.FixtureRequest) -> Any:
    method: Any = mw.IntraOp() if request.param == "mesh" else mw.Auto(stages=2, schedule="1f1b")
    parallel = mw.parallelize(step, method=method, cluster=CLUSTER, num_microbatches=4)
    return parallel.plan(STATE, BATCH)


def test_what_agrees_with_it_is_taken(plan: Any) -> None:
    for options in (
        {},
        {"num_microbatches": 4},
        {"num_microbatches": "auto"},
        {"memory_bytes": plan.peak_bytes},
        {"pins": {}},
    ):
        asked: Any = options
        again = mw.parallelize(step, method=mw.Replay(plan), cluster=CLUSTER, **asked)
        assert again.plan(STATE, BATCH).num_microbatches == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_microbatches": 8}, "num_microbatches=8 beside Replay of a plan for 4; leave it out"),
        ({"pins": {"0/w": mw.Pin(forbid="x")}}, r"pins beside Replay \(0/w\): nothing is decided"),
    ],
)
def test_what_contradicts_it_is_refused(plan: Any, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        mw.parallelize(step, method=mw.Replay(plan), cluster=CLUSTER, **options)


def test_what_a_compiler_said_holds_for_the_memory_of_which_it_was_said(plan: Any) -> None:
    verified = replace(plan, verified="a compiler 1.0 for h100")
    has = plan.stages[0].memory_bytes

    def replayed(**asked: Any) -> Any:
        step_of = mw.parallelize(step, method=mw.Replay(verified), cluster=CLUSTER, **asked)
        return step_of.plan(STATE, BATCH)

    assert replayed().verified == replayed(memory_bytes=has).verified == verified.verified
    less = replayed(memory_bytes=plan.peak_bytes)
    assert {stage.memory_bytes for stage in less.stages} == {plan.peak_bytes}
    assert less.verified == ""


def test_less_memory_than_it_needs_is_refused(plan: Any) -> None:
    less = plan.peak_bytes - 1
    with pytest.raises(InfeasibleError, match="that Replay is given needs .* memory_bytes allows"):
        mw.parallelize(step, method=mw.Replay(plan), cluster=CLUSTER, memory_bytes=less)


def from_earlier_version(plan: Any) -> Any:
    """The plan as an earlier version could write it: one byte more than there is."""
    stages = tuple(replace(s, memory_bytes=s.peak_bytes - 1) for s in plan.stages)
    return replace(plan, stages=stages)


def test_a_file_that_does_not_fit_is_refused(plan: Any) -> None:
    again = mw.parallelize(step, method=mw.Replay(from_earlier_version(plan)), cluster=CLUSTER)
    told = r"this plan does not fit: (stage 0|the plan) needs .*; plan the step again, or pass"
    with pytest.raises(PlanError, match=told):
        again.plan(STATE, BATCH)


def test_the_memory_that_is_allowed_beside_it_counts(plan: Any) -> None:
    again = mw.parallelize(
        step,
        method=mw.Replay(from_earlier_version(plan)),
        cluster=CLUSTER,
        memory_bytes=plan.peak_bytes,
    )
    taken: Any = again.plan(STATE, BATCH)
    assert {stage.memory_bytes for stage in taken.stages} == {plan.peak_bytes}
    assert "does not fit" not in taken.explain()
