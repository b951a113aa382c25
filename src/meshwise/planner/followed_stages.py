"""A step without gradients on the stages of a pipeline's plan, its state where training left it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import jax

from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.counts.work import DecidedProgram, work_of, work_together
from meshwise.plan.fingerprint import joint_fingerprint
from meshwise.plan.fits import local_bytes
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage
from meshwise.planner.followed_layouts import distance, followed, nothing_followed
from meshwise.planner.one_mesh import Forced, plan_on
from meshwise.planner.step_call import StepCall
from meshwise.request.constraints import dropped_in_stages
from meshwise.request.methods import IntraOp
from meshwise.request.plan_request import PlanRequest
from meshwise.schedules.inference import INFERENCE
from meshwise.system.collector import collection_paused
from meshwise.trace.layers.equations import inlined, run_inlined
from meshwise.trace.layers.forward.followed import ArgumentHome, FollowedStages
from meshwise.trace.layers.forward.stages import ForwardStage, ForwardStages, forward_stages
from meshwise.trace.layers.stacks.unstack import unstacked
from meshwise.trace.step import OpenStep, StepSignature, TracedStep, open_step, trace_step


def followed_stages(call: StepCall, plan: Plan, request: PlanRequest) -> FollowedStages:
    """Cut a step where a pipeline's parameters live, and plan each stage on its mesh.

    Args:
        call: The step; what it returns changed is not overwritten.
        plan: The plan of the pipeline.
        request: What is asked beside the placement.

    Returns:
        The programs of the stages with their plans.

    Raises:
        TraceError: the step cannot be traced.
        PlanError: no argument follows one of the pipeline's, one could follow several that lie
            differently, or something is asked that stages without gradients do not have.
        InfeasibleError: a stage does not fit.
    """
    _check(request)
    with collection_paused():
        opened = open_step(call.fun, call.args, call.kwargs, call.signature)
        ends = unstacked(opened, _stacks(opened, plan))
        step = ends.step
        homes = _homes(step, plan)
        closed = inlined(step.closed)
        cut = forward_stages(closed, [home and home.stage for home in homes], step.batch_dims)
        ways = [_planned(part, step, homes, plan, request) for part in cut.stages]
    warnings = [
        f"{step.names[number]} is sent from stage {home.stage} to stage {stage} in each call"
        for number, stage in cut.sent
        if (home := homes[number]) is not None
    ]
    warnings += dropped_in_stages(opened.closed)
    return FollowedStages(
        ends=ends,
        cut=cut,
        homes=tuple(homes),
        steps=tuple(way.step for way in ways),
        orders=tuple(way.order for way in ways),
        meshes=tuple((stage.mesh, stage.first_device) for stage in plan.stages),
        plans=tuple(way.plan for way in ways),
        plan=replace(
            _forward_plan(cut, ways, step, homes, plan, request),
            parameters=call.parameters,
            spelling=opened.spelling,
            warnings=tuple(warnings),
        ),
    )


def _forward_plan(
    cut: ForwardStages,
    ways: Sequence[_PlannedStage],
    step: OpenStep,
    homes: Sequence[ArgumentHome | None],
    plan: Plan,
    request: PlanRequest,
) -> Plan:
    """Return the plan of all stages, one after the other, from the plan of each."""
    sent = _sent_bytes(cut)
    stages: list[Stage] = []
    for number, (part, way) in enumerate(zip(cut.stages, ways, strict=True)):
        (own,) = way.plan.stages
        target = plan.stages[part.stage]
        # Parameters of stages that compute nothing here lie beside the first stage of their mesh.
        listed = {other.stage for other in cut.stages}
        is_first = all(s.first_device != target.first_device for s in stages)
        beside = _beside_bytes(part.stage, step, homes, plan, listed) if is_first else 0
        layer = Layer(
            layer=part.stage, equal_to=part.stage, arguments=own.arguments, decision=number
        )
        stages.append(
            replace(
                own,
                layers=(layer,),
                submesh=target.submesh,
                first_device=target.first_device,
                forward_s=own.once_s,
                once_s=0.0,
                resident_bytes=own.resident_bytes + beside,
                memory_bytes=request.memory_bytes or target.memory_bytes,
                send_bytes=sent[number],
            )
        )
    seconds = sum(way.plan.step_time_s for way in ways)
    works = [
        work_of([DecidedProgram(graph=w.step.graph, decision=w.plan.decision)], w.plan.mesh)
        for w in ways
    ]
    return Plan(
        step_time_s=seconds,
        stages=tuple(stages),
        decisions=tuple(way.plan.decision for way in ways),
        collectives=tuple(
            replace(item, stage=number)
            for number, work in enumerate(works)
            for item in work.collectives
        ),
        cluster=plan.cluster,
        schedule=INFERENCE.name,
        formula_s=seconds,
        method="Follow()",
        fingerprint=joint_fingerprint(way.plan.fingerprint for way in ways),
        replicated=work_together(works).replicated.shares(),
    )


class _PlannedStage(NamedTuple):
    """A stage as it was planned.

    Attributes:
        step: Its program.
        order: Which input of the stage each operand of the program is.
        plan: The plan of the program.
    """

    step: TracedStep
    order: tuple[int, ...]
    plan: Plan


def _check(request: PlanRequest) -> None:
    asked = {
        "num_microbatches": request.num_microbatches not in (1, "auto"),
        "pins": bool(request.pins),
        "rules": bool(request.rules),
        "dump_ilp": request.dump_ilp is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise PlanError(
                f"{name} is not supported together with Follow of a pipeline; leave it out"
                + ("; and pass smaller batches" if name == "num_microbatches" else "")
            )


def _stacks(step: OpenStep, plan: Plan) -> list[int]:
    """Return the flat arguments of which the pipeline has the layers one by one."""
    first = [
        item.name
        for stage in plan.stages
        for layer in stage.layers
        for item in layer.arguments
        if item.name.endswith("[0]")
    ]
    return [
        n
        for n, name in enumerate(step.names)
        if any(distance(f"{name}[0]", other) is not None for other in first)
    ]


def _homes(step: OpenStep, plan: Plan) -> list[ArgumentHome | None]:
    """Return where each flat argument lives; None for those that follow none."""
    # By shape and the end of the path, which they must share.  What several stages have, as a tied
    # embedding, has its home on the first of them.
    there: dict[object, list[tuple[str, tuple[int, Layout]]]] = {}
    for number, stage in enumerate(plan.stages):
        for layer in stage.layers:
            for item in layer.arguments:
                known = there.setdefault(_end(item.name, item.shape), [])
                known.append((item.name, (number, item.layout)))
    found: list[ArgumentHome | None] = []
    for n, (mine, aval) in enumerate(zip(step.names, step.in_avals, strict=True)):
        others = [] if n in step.batch_dims else there.get(_end(mine, aval.shape), [])
        home = followed(mine, aval.shape, others)
        found.append(home and ArgumentHome(*home[1], home[0]))
    if not any(found):
        names = [name for homes in there.values() for name, _ in homes]
        raise nothing_followed(step.names, names)
    return found


def _end(name: str, shape: tuple[int, ...]) -> object:
    return name.rpartition("/")[2], tuple(shape)


def _planned(
    part: ForwardStage,
    step: OpenStep,
    homes: Sequence[ArgumentHome | None],
    plan: Plan,
    request: PlanRequest,
) -> _PlannedStage:
    """Trace the program of a stage, and plan it."""
    names = [
        step.names[source.number] if source.kind == "argument" else f"value {source.number}"
        for source in part.inputs
    ]
    order = tuple(sorted(range(len(names)), key=names.__getitem__))
    avals = {
        name: jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        for name, aval in zip(names, part.closed.in_avals, strict=True)
    }

    def stage(**values: jax.Array) -> list[PyTree]:
        return run_inlined(part.closed, [values[name] for name in names])

    signature = StepSignature(batch_argnums=(), batch_dims=0, donate_argnums=())
    traced = trace_step(open_step(stage, (), avals, signature))
    target = plan.stages[part.stage]
    forced: dict[int, tuple[Layout, ...]] = {}
    for place, n in enumerate(order):
        source = part.inputs[n]
        home = homes[source.number] if source.kind == "argument" else None
        if home is not None and home.stage == part.stage:
            forced[place] = (home.layout,)
    limit = request.memory_bytes
    memory = target.memory_bytes if limit is None else limit
    memory = max(memory - _beside_bytes(part.stage, step, homes, plan), 1)
    asked = replace(request, method=IntraOp())
    try:
        made = plan_on(traced, asked, target.mesh, memory, Forced(layouts=forced))
    except InfeasibleError as error:
        raise InfeasibleError(
            f"stage {part.stage} of the step that is followed: {error}; pass smaller batches"
        ) from error
    return _PlannedStage(traced, order, made)


def _beside_bytes(
    number: int,
    step: OpenStep,
    homes: Sequence[ArgumentHome | None],
    plan: Plan,
    counted: Collection[int] = (),
) -> int:
    """Return the bytes that one device holds for parameters of other stages on its mesh.

    Args:
        number: The stage.
        step: The step.
        homes: For each argument where it lives.
        plan: The pipeline that is followed.
        counted: Stages whose parameters are counted elsewhere.
    """
    first_device = plan.stages[number].first_device
    found = 0
    for home, aval in zip(homes, step.in_avals, strict=True):
        if home is None or home.stage == number or home.stage in counted:
            continue
        other = plan.stages[home.stage]
        if other.first_device == first_device:
            tensor = Tensor(shape=aval.shape, dtype=str(aval.dtype), itemsize=aval.dtype.itemsize)
            found += local_bytes(tensor, home.layout, other.mesh.sizes)
    return found


def _sent_bytes(cut: ForwardStages) -> list[int]:
    """For each stage the bytes that the others have of it, once for each that reads them."""
    maker = {number: n for n, part in enumerate(cut.stages) for number in part.outputs}
    sent = [0] * len(cut.stages)
    for part in cut.stages:
        for source, aval in zip(part.inputs, part.closed.in_avals, strict=True):
            if source.kind == "value":
                sent[maker[source.number]] += prod(aval.shape) * aval.dtype.itemsize
    return sent
