"""Method + traced step + cluster -> plan.  No device is touched."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from meshwise.baselines.methods import plan_baseline, plan_intra_op
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import Cluster
from meshwise.collector import collection_paused
from meshwise.errors import InfeasibleError, PlanError
from meshwise.following import followed_layouts
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout
from meshwise.graph.loops import Strategy
from meshwise.intra.options import IntraOptions, IntraResult, OperatorPath
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import Region, regions
from meshwise.methods import Auto, Follow, Heuristic, IntraOp, Megatron, Method, Replay
from meshwise.pins import pinned
from meshwise.plan.collectives import collectives
from meshwise.plan.contents import arguments, dense_operators
from meshwise.plan.fingerprint import fingerprint
from meshwise.plan.flop import device_flop, replicated_work
from meshwise.plan.padding import Padding
from meshwise.plan.plan import Plan, Stage
from meshwise.plan.shares import communication
from meshwise.plan.verify import verify_decision
from meshwise.plan.walk import place
from meshwise.rules.kernel import ForeignRule
from meshwise.rules.unruled import hint
from meshwise.trace.padding.choose import padded_dims, with_padding
from meshwise.trace.step import Statistics, TracedStep

TraceFn = Callable[[int, int], TracedStep]

# A mesh of three axes has every plan of its two-axis views and takes ten times as long to plan:
# only when its shape is given.
MAX_VIEW_AXES = 2
# Above this share of FLOP or bytes a plan warns of what runs whole on every device.
_REPLICATED_FLOP_SHARE = 0.01
_REPLICATED_BYTES_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a user asks of a plan; see `parallelize`."""

    method: Method
    cluster: Callable[[], Cluster]
    num_microbatches: int | Literal["auto"] = 1
    statistics: Statistics = "exact"
    pins: Mapping[str, Any] = field(default_factory=dict[str, Any])
    memory_bytes: int | None = None
    rules: Mapping[str, ForeignRule] = field(default_factory=dict[str, ForeignRule])
    dump_ilp: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Choices that a question fixes.

    Attributes:
        layouts: Layouts that inputs may have, by position.
        strategies: Strategies that operators which decide alone may have.
    """

    layouts: Mapping[int, tuple[Layout, ...]] = field(default_factory=dict[int, tuple[Layout, ...]])
    strategies: Mapping[OperatorPath, frozenset[Strategy]] = field(
        default_factory=dict[OperatorPath, frozenset[Strategy]]
    )


NOTHING_FORCED = Forced()


def make_plan(trace: TraceFn, request: PlanRequest) -> tuple[TracedStep, Plan]:
    """Trace a step and plan it.

    Args:
        trace: Traces the step for a number of micro-batches and of devices.
        request: What is asked.

    Returns:
        The traced step and its plan, verified.

    Raises:
        TraceError, PinError, InfeasibleError, PlanError: what is asked cannot be had.
    """
    if isinstance(request.method, Replay):
        assert isinstance(request.method.plan, Plan)  # a pipeline is replayed elsewhere
        return _replay(trace, request.method.plan)
    if isinstance(request.method, Follow):
        mesh = request.method.followed().mesh
        num_devices, attempt = mesh.num_devices, partial(_plan_after, trace, request, mesh)
    else:
        cluster = request.cluster()
        num_devices, attempt = cluster.num_devices, partial(_plan_for, trace, request, cluster)
    if request.num_microbatches != "auto":
        return attempt(request.num_microbatches)
    num_microbatches = 1
    while True:
        try:
            return attempt(num_microbatches)
        except InfeasibleError:
            num_microbatches *= 2
            if num_microbatches > _largest_batch(trace, num_devices):
                raise


def _plan_after(
    trace: TraceFn, request: PlanRequest, mesh: LogicalMesh, num_microbatches: int
) -> tuple[TracedStep, Plan]:
    """Plan a step on the mesh of the step that it follows."""
    step = trace(num_microbatches, mesh.num_devices)
    limit = request.memory_bytes
    memory = mesh.device.memory_bytes if limit is None else limit
    return step, plan_on(step, request, mesh, memory)


def _largest_batch(trace: TraceFn, num_devices: int) -> int:
    step = trace(1, num_devices)
    sizes = [step.in_avals[i].shape[dim] for i, dim in step.batch_dims.items()]
    return min(sizes, default=1)


def _replay(trace: TraceFn, plan: Plan) -> tuple[TracedStep, Plan]:
    step = trace(plan.num_microbatches, plan.mesh.num_devices)
    step = with_padding(step, plan.padding.dims)
    found = fingerprint(step.graph)
    if found != plan.fingerprint:
        raise PlanError(
            f"the plan is for another step or other shapes (fingerprint {plan.fingerprint}, this "
            f"step has {found}); plan again"
        )
    verify_decision(step.graph, plan.decision, plan.mesh)
    return step, plan


def _plan_for(
    trace: TraceFn, request: PlanRequest, cluster: Cluster, num_microbatches: int
) -> tuple[TracedStep, Plan]:
    with collection_paused():
        return _best_plan(trace, request, cluster, num_microbatches)


def _best_plan(
    trace: TraceFn, request: PlanRequest, cluster: Cluster, num_microbatches: int
) -> tuple[TracedStep, Plan]:
    """The plan on the logical mesh on which the step is fastest."""
    step = trace(num_microbatches, cluster.num_devices)
    limit = request.memory_bytes
    memory = cluster.device.memory_bytes if limit is None else limit
    plain, failure = _best(step, request, cluster, memory)
    dims = padded_dims(step, cluster.num_devices) if _may_pad(request.method) else ()
    if dims:
        longer = with_padding(step, dims)
        padded, _ = _best(longer, request, cluster, memory)
        if padded is not None and (plain is None or padded.step_time_s < plain.step_time_s):
            unpadded_s = None if plain is None else plain.step_time_s
            record = Padding(dims=dims, unpadded_step_time_s=unpadded_s)
            return longer, dataclasses.replace(padded, padding=record)
    if plain is None:
        assert failure is not None
        raise failure
    return step, plain


def _may_pad(method: Method) -> bool:
    """Methods whose plans pad dims where it pays; "alpa" is the paper's formulation, without."""
    return isinstance(method, (Auto, Megatron)) or (
        isinstance(method, IntraOp) and method.objective == "time"
    )


def _best(
    step: TracedStep, request: PlanRequest, cluster: Cluster, memory: int
) -> tuple[Plan | None, InfeasibleError | None]:
    """The fastest plan over the meshes of a method, or why the last one has none."""
    best: Plan | None = None
    failure: InfeasibleError | None = None
    for mesh in _meshes(request.method, cluster):
        try:
            plan = plan_on(step, request, mesh, memory)
        except InfeasibleError as error:
            failure = error
            continue
        if best is None or plan.step_time_s < best.step_time_s:
            best = plan
    return best, failure


def _meshes(method: Method, cluster: Cluster) -> list[LogicalMesh]:
    """The logical meshes that a method tries."""
    match method:
        case IntraOp(mesh_shape=shape) | Heuristic(mesh_shape=shape) if shape is not None:
            return [cluster.mesh(shape)]
        case Megatron(dp=dp, tp=tp, pp=pp):
            assert pp == 1  # the trace refuses stages
            return [cluster.mesh((dp, tp))]
        case Auto() | IntraOp() | Heuristic():
            shapes = [s for s in cluster.mesh_shapes() if len(s) <= MAX_VIEW_AXES]
            return [cluster.mesh(shape) for shape in shapes]
        case _:
            return [cluster.mesh((cluster.num_devices,))]


def plan_on(
    step: TracedStep,
    request: PlanRequest,
    mesh: LogicalMesh,
    memory: int,
    forced: Forced = NOTHING_FORCED,
) -> Plan:
    """Plan a traced step on one mesh.

    Args:
        step: The step.
        request: What is asked; its cluster does not matter any more.
        mesh: The mesh.
        memory: Bytes of one device.
        forced: What is fixed beside the pins; it wins over them.

    Raises:
        PinError, InfeasibleError, SolverError: there is no such plan.
    """
    method = request.method
    pins = pinned(step.graph, request.pins, mesh)
    graph = pins.graph
    parts = regions(graph)
    follows = isinstance(method, Follow)
    followed = followed_layouts(graph, method.followed()) if follows else {}
    objective = method.objective if isinstance(method, IntraOp) else "time"
    options = IntraOptions(
        objective=objective,
        memory_bytes=memory,
        time_limit_s=method.time_limit_s if isinstance(method, (IntraOp, Auto)) else 60.0,
        seed=method.seed if isinstance(method, (IntraOp, Auto)) else 0,
        layouts={**followed, **pins.layouts, **forced.layouts},
        strategies={**pins.strategies, **forced.strategies},
        dump_ilp=request.dump_ilp,
    )
    if isinstance(method, (IntraOp, Auto, Follow)):
        result = plan_intra_op(graph, mesh, step.batch_dims, options, parts)
    else:
        name = method_name(method)
        result = plan_baseline(name, graph, mesh, step.batch_dims, options, parts)
    step = dataclasses.replace(step, graph=graph)
    return finished_plan(step, parts, mesh, result, method, objective, has_pins=bool(request.pins))


def method_name(method: Method) -> str:
    """Text of a method, as `Megatron(dp=2, tp=4, pp=1)`."""
    return f"{type(method).__name__}()" if isinstance(method, (Replay, Follow)) else repr(method)


def _space(result: IntraResult, method: Method, has_pins: bool) -> str:
    """Among which plans the gap of a result holds."""
    bounds = [] if isinstance(method, (IntraOp, Auto)) else [method_name(method)]
    if has_pins:
        bounds.append("the pins")
    under = f" under {' and '.join(bounds)}" if bounds else ""
    # Other meshes and numbers of micro-batches were compared by their best plans found only.
    return f"{result.space}{under}, on this mesh"


def finished_plan(
    step: TracedStep,
    parts: tuple[Region, ...],
    mesh: LogicalMesh,
    result: IntraResult,
    method: Method,
    objective: str,
    *,
    has_pins: bool = False,
) -> Plan:
    """Everything that a plan says about a decision; verified.

    Raises:
        PlanError: the decision contradicts the graph (an error of the planner).
    """
    graph, decision = step.graph, result.decision
    verify_decision(graph, decision, mesh)
    whole = replicated_work(graph, decision, mesh)
    moves = communication(graph, decision, mesh)
    warnings = list(step.warnings) + [
        f"{op.kind} at {op.where} has no rule and runs whole on every device{hint(op.kind)}"
        for op in {o.kind: o for o in _operators(graph) if not o.rule.ruled}.values()
    ]
    uncounted = [o for o in _operators(graph) if o.structure and not o.structure.is_counted]
    warnings += [
        f"{where} runs an unknown number of times; the plan counts one"
        for where in dict.fromkeys(place(op) for op in uncounted)
    ]
    if mesh.num_devices > 1 and (
        whole.flop_share > _REPLICATED_FLOP_SHARE or whole.bytes_share > _REPLICATED_BYTES_SHARE
    ):
        warnings.append(
            f"{whole.flop_share:.1%} of FLOP and {whole.bytes_share:.1%} of bytes run whole on "
            "every device"
        )
    used = collectives(graph, decision, mesh)
    if result.conceded:
        # What all-gather was allowed for may be done by a cheaper path of other kinds.
        places = sorted({f"{c.kind} at {c.where}" for c in used if c.kind != "all-reduce"})
        warnings.append(
            f"{method_name(method)} without {' and '.join(result.conceded)} has no plan for this "
            f"step; it has {'; '.join(places[:3])}{'; ...' if len(places) > 3 else ''}"
        )
    return Plan(
        step_time_s=step_time_s(graph, decision, mesh, parts=parts),
        collectives=used,
        stages=(
            Stage(
                mesh=mesh,
                decision=decision,
                arguments=arguments(graph, moves),
                dense=dense_operators(graph, decision, mesh, moves),
                peak_bytes=result.peak_bytes,
                device_flop=device_flop(graph, decision, mesh),
            ),
        ),
        num_microbatches=step.num_microbatches,
        method=method_name(method),
        objective=objective,
        # What was not solved has no bound: its gap of 0 would only compare it with itself.
        gap=result.gap if math.isfinite(result.gap) and result.status != "greedy" else None,
        space=_space(result, method, has_pins),
        status=result.status,
        fingerprint=fingerprint(graph),
        replicated=whole,
        parameters=step.parameters,
        warnings=tuple(warnings),
    )


def _operators(graph: Graph) -> list[Operator]:
    """All operators, those of bodies after the one that holds them."""
    found: list[Operator] = []
    for op in graph.operators:
        found += [op, *(inner for body in op.bodies for inner in _operators(body))]
    return found
