"""Everything that a plan says about a decision."""

from __future__ import annotations

import math

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import Cluster
from meshwise.graph.graph import Graph, Operator
from meshwise.intra.options import IntraOptions, IntraResult
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import Region
from meshwise.memory.peak import peak
from meshwise.plan.counts.walk import place
from meshwise.plan.counts.work import DecidedProgram, work_of
from meshwise.plan.fingerprint import fingerprint
from meshwise.plan.fits import MeshBytes, StageBytes, check_fits, local_bytes
from meshwise.plan.one_program import program_stage
from meshwise.plan.plan import Plan
from meshwise.plan.verify import verify_decision
from meshwise.request.methods import Auto, Follow, IntraOp, Method, Replay
from meshwise.rules.unruled import hint
from meshwise.trace.step import TracedStep

# Above this share of FLOP or bytes a plan warns of what runs whole on every device.
_REPLICATED_FLOP_SHARE = 0.01
_REPLICATED_BYTES_SHARE = 0.05


def method_name(method: Method) -> str:
    """Text of a method, as `Megatron(dp=2, tp=4, pp=1)`."""
    return f"{type(method).__name__}()" if isinstance(method, (Replay, Follow)) else repr(method)


def _space(result: IntraResult, method: Method, has_pins: bool, where: str) -> str:
    """Among which plans the gap of a result holds."""
    bounds = [] if isinstance(method, (IntraOp, Auto)) else [method_name(method)]
    if has_pins:
        bounds.append("the pins")
    under = f" under {' and '.join(bounds)}" if bounds else ""
    # Other numbers of micro-batches were compared by their best plans found only.
    return f"{result.space}{under}, {where}"


def finished_plan(
    step: TracedStep,
    parts: tuple[Region, ...],
    mesh: LogicalMesh,
    result: IntraResult,
    method: Method,
    options: IntraOptions,
    *,
    cluster: Cluster | None,
    has_pins: bool = False,
    where: str = "on this mesh",
) -> Plan:
    """Everything that a plan says about a decision; verified.

    Args:
        step: The step, with the graph that was planned.
        parts: The regions of the graph.
        mesh: Where it runs.
        result: The decision, and what is known of it.
        method: What found it.
        options: What was asked: what is minimised, and how much memory there is.
        cluster: Where it runs; None where only the mesh is known.
        has_pins: Whether pins restrict the space of plans.
        where: On which meshes the gap holds.

    Raises:
        PlanError: the decision contradicts the graph (an error of the planner).
    """
    graph, decision = step.graph, result.decision
    verify_decision(graph, decision, mesh)
    work = work_of([DecidedProgram(graph=graph, decision=decision)], mesh)
    whole = work.replicated.shares()
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
    if result.conceded:
        # What all-gather was allowed for may be done by a cheaper path of other kinds.
        places = sorted(
            {f"{c.kind} at {c.where}" for c in work.collectives if c.kind != "all-reduce"}
        )
        warnings.append(
            f"{method_name(method)} without {' and '.join(result.conceded)} has no plan for this "
            f"step; it has {'; '.join(places[:3])}{'; ...' if len(places) > 3 else ''}"
        )
    seconds = step_time_s(graph, decision, mesh, parts=parts)
    rows = {step.in_avals[i].shape[dim] for i, dim in step.batch_dims.items()}
    stage = program_stage(
        graph,
        decision,
        mesh,
        work,
        step_time_s=seconds,
        peak_bytes=result.peak_bytes,
        memory_bytes=options.memory_bytes,
        cluster=cluster,
    )
    return Plan(
        step_time_s=seconds,
        stages=(stage,),
        decisions=(decision,),
        collectives=work.collectives,
        cluster=cluster and Cluster(name=cluster.name, groups=cluster.groups),
        batch_size=rows.pop() if len(rows) == 1 else 0,
        num_microbatches=step.num_microbatches,
        simulated_s=seconds,
        tried=((step.num_microbatches, seconds),),
        method=method_name(method),
        objective=options.objective,
        # What was not solved has no bound: its gap of 0 would only compare it with itself.
        gap=result.gap if math.isfinite(result.gap) and result.status != "greedy" else None,
        space=_space(result, method, has_pins, where),
        status=result.status,
        fingerprint=fingerprint(graph),
        replicated=whole,
        parameters=step.parameters,
        warnings=tuple(warnings),
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
    sizes = stage.mesh.sizes
    inputs = dict(zip(graph.inputs, plan.decision.inputs, strict=True))
    held = StageBytes(
        state=sum(local_bytes(graph.tensors[t], layout, sizes) for t, layout in inputs.items()),
        resident=max(stage.peak_bytes, peak(graph, plan.decision, stage.mesh).num_bytes),
    )
    mesh = MeshBytes(name="the plan", memory=stage.memory_bytes, stages={0: held})
    check_fits([mesh], remedy)


def _operators(graph: Graph) -> list[Operator]:
    """All operators, those of bodies after the one that holds them."""
    found: list[Operator] = []
    for op in graph.operators:
        found += [op, *(inner for body in op.bodies for inner in _operators(body))]
    return found
