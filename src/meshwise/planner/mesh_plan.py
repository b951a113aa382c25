"""Everything that a plan says about a decision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwise.baselines.restrictions import undivided_products
from meshwise.baselines.search import MeshPlace
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.loops import NO_RULE
from meshwise.intra.batch_loops import operator_paths
from meshwise.intra.options import IntraResult
from meshwise.intra.price import other_operators, step_time_s
from meshwise.memory.peak import peak
from meshwise.memory.targets import memory_model_of
from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.counts.contents import dear
from meshwise.plan.counts.flop import Replicated, flop_share
from meshwise.plan.counts.walk import place as op_place
from meshwise.plan.counts.work import DecidedProgram, Work, work_of
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fingerprint import fingerprint
from meshwise.plan.fits import MeshBytes, StageBytes, check_fits
from meshwise.plan.offload import bytes_on_device
from meshwise.plan.one_program import program_stage
from meshwise.plan.plan import Plan
from meshwise.plan.verify import verify_decision
from meshwise.planner.peak_parts import peak_parts
from meshwise.request.constraints import FREE_METHODS, dropped_on
from meshwise.request.methods import Auto, Follow, IntraOp, Megatron, Method, Replay
from meshwise.request.plan_request import PlanRequest
from meshwise.rules.unruled import hint
from meshwise.trace.step import TracedStep
from meshwise.units import counted

# Above this share of FLOP or bytes a plan warns of what runs whole on every device.
_REPLICATED_FLOP_SHARE = 0.01
_REPLICATED_BYTES_SHARE = 0.05
# Above this share of a step in collectives it warns too.
_COLLECTIVE_SHARE = 2 / 3
# Above this share of FLOP in convolutions it warns of compilers that are slow at them in loops.
_CONVOLUTION_SHARE = 0.1


def method_name(method: Method) -> str:
    """Return the text of a method, as `Megatron(dp=2, tp=4, pp=1)`."""
    return f"{type(method).__name__}()" if isinstance(method, (Replay, Follow)) else repr(method)


def finished_plan(
    step: TracedStep,
    place: MeshPlace,
    result: IntraResult,
    request: PlanRequest,
    *,
    cluster: ClusterSpec | None,
    where: str = "on this mesh",
) -> Plan:
    """Return everything that a plan says about a decision; verified.

    Args:
        step: The step, with the graph that was planned.
        place: That graph on its mesh, with what was minimised and how much memory there is.
        result: The decision, and what is known of it.
        request: What was asked: the method that decided, and pins.
        cluster: Where it runs; None where only the mesh is known.
        where: On which meshes the gap holds.

    Returns:
        The plan.

    Raises:
        PlanError: the decision contradicts the graph (an error of the planner).
    """
    decision, mesh, options = result.decision, place.mesh, place.options
    verify_decision(step.graph, decision, mesh)
    program = DecidedProgram(graph=step.graph, decision=decision)
    work = work_of([program], mesh)
    seconds = step_time_s(step.graph, decision, mesh, parts=place.parts)
    stage = program_stage(
        program, mesh, work, step_time_s=seconds, peak_bytes=result.peak_bytes, cluster=cluster
    )
    others = other_operators(step.graph, decision, mesh, parts=place.parts)
    stage = replace(stage, others=dear(others, seconds))
    if options.memory_bytes is not None:
        stage = replace(stage, memory_bytes=options.memory_bytes)
    method = method_name(request.method)
    return Plan(
        step_time_s=seconds,
        stages=(stage,),
        decisions=(decision,),
        collectives=work.collectives,
        cluster=cluster and ClusterSpec(name=cluster.name, groups=cluster.groups),
        batch_size=_batch_size(step),
        num_microbatches=step.num_microbatches,
        formula_s=seconds,
        tried=((step.num_microbatches, seconds),),
        method=method,
        objective=options.objective,
        # What was not solved has no bound: its gap of 0 would only compare it with itself.
        gap=result.gap if math.isfinite(result.gap) and result.status != "greedy" else None,
        space=_space(result, request, where),
        status=result.status,
        fingerprint=fingerprint(step.graph),
        replicated=work.replicated.shares(),
        parameters=step.parameters,
        spelling=step.spelling,
        peak_parts=peak_parts(peak(step.graph, decision, mesh)),
        warnings=(
            *step.warnings,
            *dropped_on(
                step.program,
                mesh,
                options.strategies,
                decides=not isinstance(request.method, FREE_METHODS),
            ),
            *_device_warnings(mesh, cluster),
            *_warnings(step, result, work, mesh, method),
            *_collective_warnings(work, mesh, seconds),
            *_batch_warnings(step, decision, mesh, request.method),
            *_tensor_warnings(step, mesh, request.method),
        ),
    )


def _batch_size(step: TracedStep) -> int:
    """Return the rows of the whole batch; 0 if no argument is batch data, or they differ."""
    rows = {step.in_avals[i].shape[dim] for i, dim in step.batch_dims.items()}
    return rows.pop() if len(rows) == 1 else 0


def _space(result: IntraResult, request: PlanRequest, where: str) -> str:
    """Return among which plans the gap of a result holds."""
    method = request.method
    bounds = [] if isinstance(method, (IntraOp, Auto)) else [method_name(method)]
    if request.pins:
        bounds.append("the pins")
    under = f" under {' and '.join(bounds)}" if bounds else ""
    # Other numbers of micro-batches were compared by their best plans found only.
    return f"{result.space}{under}, {where}"


def _warnings(
    step: TracedStep, result: IntraResult, work: Work, mesh: LogicalMesh, method: str
) -> Iterator[str]:
    yield from _graph_warnings(step.graph)
    yield from _loop_warnings(step, result.decision, mesh)
    if mesh.num_devices > 1:
        yield from replicated_warnings(work.replicated.shares())
    yield from _concessions(result, work, method)


def _device_warnings(mesh: LogicalMesh, cluster: ClusterSpec | None) -> Iterator[str]:
    """Yield that a mesh, whose shape was given, leaves devices out."""
    if cluster is not None and mesh.num_devices < cluster.num_devices:
        first, end = mesh.num_devices, cluster.num_devices
        rest = f"devices {first} to {end - 1} are" if first < end - 1 else f"device {first} is"
        yield (
            f"the mesh {'x'.join(map(str, mesh.sizes))} has the first {first} of the {end} devices "
            f"of {cluster.name}; {rest} not used"
        )


def _graph_warnings(graph: Graph) -> Iterator[str]:
    """Yield what the planner does not know of a graph: rules, and trips of loops."""
    operators = _operators(graph)
    unruled = {(o.kind, o.rule.whole): o for o in operators if not o.rule.ruled}
    for op in unruled.values():
        why = hint(op.kind, op.rule)
        lacks = "has no rule and " if op.rule.whole == NO_RULE else ""
        yield f"{op.kind} at {op.where} {lacks}runs whole on every device{why}"
    uncounted = [o for o in operators if o.structure and not o.structure.is_counted]
    for where in dict.fromkeys(map(op_place, uncounted)):
        yield f"{where} runs an unknown number of times; the plan counts one"


def _loop_warnings(step: TracedStep, decision: GraphDecision, mesh: LogicalMesh) -> Iterator[str]:
    """Yield what a compiler is slow at in the loop over micro-batches, where prices lack it."""
    if memory_model_of(mesh.device).name != "cpu" or step.num_microbatches == 1:
        return
    # What is not in the loop is a small part of a step.
    share = flop_share(step.graph, decision, lambda operator: bool(operator.dim_orders))
    if share > _CONVOLUTION_SHARE:
        yield (
            f"XLA:CPU can be many times slower at convolutions in a loop, as that over the "
            f"{step.num_microbatches} micro-batches, which the predicted time leaves out (they "
            f"are {share:.0%} of the FLOP); num_microbatches=1 and plans with stages have no such "
            "loop"
        )


def replicated_warnings(whole: Replicated, where: str = "") -> Iterator[str]:
    """Yield what runs whole on every device, if that is much.

    Args:
        whole: What does.
        where: Of which devices this speaks, as ` of its stage`; of all where it is empty.
    """
    if whole.flop_share > _REPLICATED_FLOP_SHARE or whole.bytes_share > _REPLICATED_BYTES_SHARE:
        largest = f"; the largest is {whole.largest[0][0]}" if whole.largest else ""
        yield (
            f"{whole.flop_share:.1%} of FLOP and {whole.bytes_share:.1%} of bytes run whole on "
            f"every device{where}{largest}, explain() names more"
        )


def _collective_warnings(work: Work, mesh: LogicalMesh, step_time_s: float) -> Iterator[str]:
    """Yield that devices talk for most of a step."""
    sent_s = math.fsum(item.count * collective_s(item, mesh) for item in work.collectives)
    if sent_s > _COLLECTIVE_SHARE * step_time_s:
        count = sum(item.count for item in work.collectives)
        yield (
            f"{sent_s / step_time_s:.0%} of a step goes to {counted(count, 'collective')}; with a "
            "larger batch, or on fewer devices, this share is smaller"
        )


def _batch_warnings(
    step: TracedStep, decision: GraphDecision, mesh: LogicalMesh, method: Method
) -> Iterator[str]:
    """Yield that no device has a part of the batch, where its size is the reason."""
    rows, devices = _batch_size(step), mesh.num_devices
    is_split = any(decision.inputs[i].dims[dim] for i, dim in step.batch_dims.items())
    if is_split or rows % devices == 0 or isinstance(method, Megatron):
        return
    yield (
        f"every device holds all {counted(rows, 'row')} of the batch: they cannot be divided by "
        f"{counted(devices, 'device')}; a multiple of {devices} rows can be split"
    )


def _tensor_warnings(step: TracedStep, mesh: LogicalMesh, method: Method) -> Iterator[str]:
    """Yield that Megatron's tensor axis cannot split products, where sizes are the reason."""
    if not isinstance(method, Megatron) or len(mesh.sizes) != 2 or mesh.sizes[1] == 1:
        return
    found = undivided_products(step.graph, mesh, step.batch_dims)
    if not found:
        return
    path, sizes = next(iter(found.items()))
    op = dict(operator_paths(step.graph))[path]
    told = ", ".join(map(str, sorted(set(sizes))))
    yield (
        f"tp={mesh.sizes[1]} divides no dim of weights or heads of {counted(len(found), 'product')}"
        f", which every device computes whole: {op.kind} at {op.where} has {told} there; take a tp "
        f"that divides {max(sizes)}"
    )


def _concessions(result: IntraResult, work: Work, method: str) -> Iterator[str]:
    """Yield what a method was allowed that it forbids."""
    if result.conceded:
        # What all-gather was allowed for may be done by a cheaper path of other kinds.
        places = sorted(
            {f"{c.kind} at {c.where}" for c in work.collectives if c.kind != "all-reduce"}
        )
        yield (
            f"{method} without {' and '.join(result.conceded)} has no plan for this "
            f"step; it has {'; '.join(places[:3])}{'; ...' if len(places) > 3 else ''}"
        )


def check_plan_fits(graph: Graph, plan: Plan, remedy: str) -> None:
    """Check that a plan of one mesh fits into its devices, counted anew from its decision.

    Args:
        graph: What was planned.
        plan: Its plan.
        remedy: What to do if it does not fit.

    Raises:
        PlanError: it needs more memory than its devices have.
    """
    (stage,) = plan.stages
    held = StageBytes(
        state=bytes_on_device(graph, plan.decision, stage.mesh),
        resident=max(stage.peak_bytes, peak(graph, plan.decision, stage.mesh).num_bytes),
    )
    mesh = MeshBytes(name="the plan", memory=stage.memory_bytes, stages={0: held})
    check_fits([mesh], remedy)


def _operators(graph: Graph) -> list[Operator]:
    """Return all operators, those of bodies after the one that holds them."""
    found: list[Operator] = []
    for op in graph.operators:
        found += [op, *(inner for body in op.bodies for inner in _operators(body))]
    return found
