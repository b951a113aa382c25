"""A call of a user's step and what is asked of it -> a plan, for one mesh and for pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import jax

from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import InfeasibleError, PinError, PlanError
from meshwise.graph.graph import Graph
from meshwise.jax_compat.jaxprs import FlatJaxpr
from meshwise.plan.counts.flop import all_flop
from meshwise.plan.fits import check_state_fits
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.planner.attention_hint import with_attention_hint
from meshwise.planner.followed_stages import followed_stages
from meshwise.planner.kept_records import kept_records
from meshwise.planner.long_attention import has_long_attention
from meshwise.planner.offload import asked_offload
from meshwise.planner.one_mesh import JoinedAttention, make_plan
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.replay import replayed_pipeline
from meshwise.planner.step_call import StepCall
from meshwise.request.methods import Auto, Follow, Method, Replay, asks_for_stages
from meshwise.request.pipeline_request import pipeline_request
from meshwise.request.placement import Placement
from meshwise.request.plan_request import PlanRequest
from meshwise.schedules.registry import is_forward_only
from meshwise.system.progress import say
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.experts.replace import with_experts
from meshwise.trace.gradients import refuse_stages
from meshwise.trace.layers.equations import inlined
from meshwise.trace.step import (
    OpenStep,
    TracedStep,
    abstract,
    argument_names,
    open_step,
    state_bytes,
    trace_step,
)
from meshwise.units import counted


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


def placement_of(planned: PlannedCall, call: StepCall) -> Placement | None:
    """Return where a plan has the state of a call with other shapes of its batch.

    Args:
        planned: An earlier call of the step.
        call: The call.

    Returns:
        None if the calls differ in more than the shapes of batch data.
    """
    flat, tree = jax.tree.flatten((call.args, dict(call.kwargs)))
    user = planned.user
    if tree != user.in_tree:
        return None
    state = [n for n in range(len(flat)) if n not in user.batch_dims]
    if any(
        (abstract(flat[n]).shape, abstract(flat[n]).dtype)
        != (user.in_avals[n].shape, user.in_avals[n].dtype)
        for n in state
    ):
        return None
    names = argument_names((call.args, dict(call.kwargs)), call.signature)
    return Placement(plan=planned.plan, state=frozenset(names[n] for n in state))


def plan_call(call: StepCall, request: PlanRequest) -> PlannedCall:
    """Plan a call of a step; no device is touched.

    Args:
        call: The call.
        request: What is asked.

    Raises:
        TraceError, PinError, InfeasibleError, PlanError: what is asked cannot be had.
    """
    if request.placement is not None:
        return _placed(call, request, request.placement)
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
            return _planned_pipeline(call, request)


def _planned_pipeline(call: StepCall, request: PlanRequest) -> PlannedPipeline:
    """Search the stages of a step, beginning with what earlier plans found out."""
    asked = pipeline_request(request)
    with kept_records() as records:
        return plan_pipeline(call.fun, call.args, call.kwargs, call.signature, asked, say, records)


def _placed(call: StepCall, request: PlanRequest, placement: Placement) -> PlannedCall:
    """Plan a call with the state where it is; elsewhere if nothing fits there, with a warning."""
    free = replace(request, placement=None)
    planned: PlannedCall | None = None
    if placement.has_stages == has_stages(request.method):
        with suppress(InfeasibleError, PinError, PlanError):
            planned = (
                _planned_pipeline(call, request)
                if placement.has_stages
                else _one_program(call, request)
            )
    if planned is None:
        planned = plan_call(call, free)
    moved = placement.moved(planned.plan)
    if not moved:
        return planned
    warning = (
        f"for these shapes {counted(len(moved), 'argument')} of state, as {moved[0]}, must lie "
        "elsewhere than for the first ones, so state moves where calls with both follow one "
        "another; plan first for the shapes that need most memory: step.plan(state, largest_batch)"
    )
    assert isinstance(planned, (PlannedProgram, PlannedPipeline))
    plan = replace(planned.plan, warnings=(*planned.plan.warnings, warning))
    return replace(planned, plan=plan)


def _one_program(call: StepCall, request: PlanRequest) -> PlannedProgram:
    if not isinstance(request.method, (Replay, Follow)):
        num_bytes = state_bytes(call.args, call.signature)
        cluster = request.cluster()
        if asked_offload(request.method, cluster.device) is False:
            check_state_fits(num_bytes, cluster, request.memory_bytes)

    @cache
    def opened() -> OpenStep:
        say("tracing")
        step = open_step(call.fun, call.args, call.kwargs, call.signature)
        # A plan that is followed exactly says what the step was.
        method = request.method
        joins = not isinstance(method, Replay) or method.plan.joins_experts
        return with_experts(step) if joins else step

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

    @cache
    def flat() -> FlatJaxpr:
        return inlined(opened().closed).jaxpr

    def is_long(graph: Graph, device: DeviceSpec) -> bool:
        return has_long_attention(flat(), all_flop(graph), device)

    step, plan = make_plan(trace, request, JoinedAttention(trace=attended, is_long=is_long))
    if not isinstance(request.method, Replay):
        plan = with_attention_hint(plan, flat, step.graph)
        plan = replace(plan, joins_experts=opened().joins_experts)
    return PlannedProgram(traced=step, plan=plan)
