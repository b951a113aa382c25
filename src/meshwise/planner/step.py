"""A call of a user's step and what is asked of it -> a plan, for one mesh and for pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import jax

from meshwise.errors import PlanError
from meshwise.plan.fits import check_state_fits
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.planner.followed_stages import followed_stages
from meshwise.planner.offload import asked_offload
from meshwise.planner.one_mesh import make_plan
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.replay import replayed_pipeline
from meshwise.planner.step_call import StepCall
from meshwise.request.methods import Auto, Follow, Method, Replay, asks_for_stages
from meshwise.request.pipeline_request import pipeline_request
from meshwise.request.plan_request import PlanRequest
from meshwise.schedules.registry import is_forward_only
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.gradients import refuse_stages
from meshwise.trace.step import (
    OpenStep,
    TracedStep,
    abstract,
    open_step,
    state_bytes,
    trace_step,
)


class UserStep(Protocol):
    """What is known of a user's step after tracing."""

    @property
    def in_tree(self) -> Any:
        """Tree of `(args, kwargs)`."""
        ...

    @property
    def in_avals(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Flat arguments."""
        ...

    @property
    def batch_dims(self) -> Mapping[int, int]:
        """Batch dim of each flat argument that is batch data, by position."""
        ...


class PlannedCall(Protocol):
    """A step that is planned, with all that compiling it needs."""

    @property
    def plan(self) -> Plan:
        """Its plan."""
        ...

    @property
    def user(self) -> UserStep:
        """The user's step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProgram:
    """A step that runs as one program on one mesh.

    Attributes:
        traced: The step.
        plan: Its plan.
    """

    traced: TracedStep
    plan: Plan

    @property
    def user(self) -> TracedStep:
        """The user's step."""
        return self.traced


def has_stages(method: Method) -> bool:
    """Return whether a method plans a step as several programs.

    Raises:
        PlanError: it follows a step that has no plan yet.
    """
    match method:
        case Auto(stages=stages):
            return stages is not None
        case Follow() as follow:
            return follow.followed().schedule != ONE_PROGRAM
        case Replay(plan=plan):
            return plan.schedule != ONE_PROGRAM
        case _:
            return False


def plan_call(call: StepCall, request: PlanRequest) -> PlannedCall:
    """Plan a call of a step; no device is touched.

    Args:
        call: The call.
        request: What is asked.

    Raises:
        TraceError, PinError, InfeasibleError, PlanError: what is asked cannot be had.
    """
    if not has_stages(request.method):
        return _one_program(call, request)
    # A loss whose types name axes (of Explicit meshes) could not be cut.
    args, kwargs = jax.tree.map(abstract, (call.args, dict(call.kwargs)))
    call = replace(call, args=args, kwargs=kwargs)
    match request.method:
        case Follow() as follow:
            return followed_stages(call, follow.followed(), request)
        case Replay(plan=plan) if is_forward_only(plan.schedule):
            raise PlanError(
                "the plan follows the stages of another step; pass method=mw.Follow(train_step), "
                "which makes the same plan"
            )
        case Replay(plan=plan):
            return replayed_pipeline(call, plan, request.statistics, request.memory_bytes)
        case _:
            given = (call.fun, call.args, call.kwargs, call.signature)
            return plan_pipeline(*given, pipeline_request(request))


def _one_program(call: StepCall, request: PlanRequest) -> PlannedProgram:
    if not isinstance(request.method, (Replay, Follow)):
        num_bytes = state_bytes(call.args, call.signature)
        cluster = request.cluster()
        if asked_offload(request.method, cluster.device) is False:
            check_state_fits(num_bytes, cluster, request.memory_bytes)

    @cache
    def opened() -> OpenStep:
        return open_step(call.fun, call.args, call.kwargs, call.signature)

    def traced(step: OpenStep, num_microbatches: int, num_devices: int) -> TracedStep:
        return trace_step(
            step,
            num_microbatches=num_microbatches,
            statistics=request.statistics,
            num_devices=num_devices,
            rules=request.rules,
        )

    def trace(num_microbatches: int, num_devices: int) -> TracedStep:
        step = opened()
        if asked := asks_for_stages(request.method):
            refuse_stages(step.closed, asked)
        return traced(step, num_microbatches, num_devices)

    def attended(num_microbatches: int, num_devices: int) -> TracedStep | None:
        step = with_attention(opened())
        return None if step is None else traced(step, num_microbatches, num_devices)

    step, plan = make_plan(trace, request, attended)
    return PlannedProgram(traced=step, plan=plan)
