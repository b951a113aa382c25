"""A pipeline as its plan says, without planning again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwise.errors import PlanError
from meshwise.graph.graph import Graph
from meshwise.inter.clustering.operator_chain import OperatorChain
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.layer_cost.arrivals import arrival_works, planned_neighbours
from meshwise.inter.layer_cost.waiting_values import waiting_bytes
from meshwise.inter.search.layer_work import with_work
from meshwise.inter.search.memory_guard import check_pipeline_fits
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fingerprint import pipeline_fingerprint
from meshwise.plan.fits import REPLAN
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Remat, Stage
from meshwise.plan.verify import verify_decision
from meshwise.planner.memory_share import limited_plan
from meshwise.planner.other_step import REMEDY
from meshwise.planner.pipeline import layers_of
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.step_call import StepCall
from meshwise.simulate.plan import simulate_plan
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import Statistics
from meshwise.units import counted


def replayed_pipeline(
    call: StepCall, plan: Plan, statistics: Statistics = "exact", memory_bytes: int | None = None
) -> PlannedPipeline:
    """Return the pipeline of a plan for the step that it was made for.

    Args:
        call: The step.
        plan: The plan.
        statistics: "exact", or "local" for statistics of each micro-batch.
        memory_bytes: Memory of a device, as it is asked for; None: what the plan says.

    Returns:
        The pipeline, checked and simulated.

    Raises:
        TraceError: the step cannot be cut.
        PlanError: the plan has no decisions, is not for this step, or does not fit.
    """
    numbers = [layer.decision for stage in plan.stages for layer in stage.layers]
    if not plan.cuts or None in numbers:
        raise PlanError(
            "this plan of a pipeline cannot be replayed: it has no decisions about layers, as "
            "files of version 1; plan the step again"
        )
    layers = _layers(call, plan, statistics)
    decisions = tuple(
        tuple(plan.decisions[layer.decision or 0] for layer in stage.layers)
        for stage in plan.stages
    )
    known: set[object] = set()
    for stage, decided in zip(plan.stages, decisions, strict=True):
        for layer, decision in zip(stage.layers, decided, strict=True):
            key = (layers.classes[layer.layer], layer.decision, stage.mesh, stage.remat)
            is_new = key not in known
            known.add(key)
            _check(layers, plan, stage, layer, decision, is_new=is_new)

    def piece(number: int, layer: Layer) -> PieceGraph:
        return piece_of(layer.layer, plan.stages[number].remat)

    def piece_of(k: int, remat: Remat) -> PieceGraph:
        return layers.graph(k, k, plan.num_microbatches, remat)

    def graph_of(k: int, remat: Remat) -> Graph:
        return piece_of(k, remat).graph

    if plan.fingerprint and plan.fingerprint != pipeline_fingerprint(plan.stages, graph_of):
        raise PlanError(f"the plan is for another step or other shapes; {REMEDY}")
    plan = _counted(plan, layers, piece, memory_bytes)
    timeline = simulate_plan(plan).timeline
    return PlannedPipeline(layers=layers, plan=plan, timeline=timeline, decisions=decisions)


def _counted(
    plan: Plan,
    layers: Layering,
    piece: Callable[[int, Layer], PieceGraph],
    memory_bytes: int | None,
) -> Plan:
    """Return a plan with what its programs do and hold, counted anew.

    Raises:
        PlanError: it does not fit.
    """
    # What programs do follows from the decisions; files of earlier versions say less of it.
    neighbours = planned_neighbours(
        plan.stages, plan.mesh_of_stage, plan.decisions, piece, layers.crossing_names
    )
    arrivals = arrival_works(neighbours)
    plan = with_work(plan, piece, arrivals)
    if memory_bytes is not None:
        plan = limited_plan(plan, lambda _: memory_bytes)
    waiting = waiting_bytes(neighbours, plan.stages, plan.table(), layers.argument_names)
    held = check_pipeline_fits(
        plan, piece, arrivals, waiting, lambda stage: stage.memory_bytes, REPLAN
    )
    stages = tuple(
        replace(
            stage,
            waiting_bytes=now.waiting,
            temporary_bytes=max(stage.temporary_bytes, now.temporary),
        )
        for stage, now in zip(plan.stages, held, strict=True)
    )
    return replace(plan, stages=stages)


def _layers(call: StepCall, plan: Plan, statistics: Statistics) -> Layering:
    """Cut a step into layers as a plan says.

    Raises:
        PlanError: the plan is for another step or batch.
    """

    def cut(chain: OperatorChain) -> Ranges:
        if plan.cuts[-1][1] + 1 != chain.num_operators:
            raise PlanError(
                "the plan is for another step: its layers have "
                f"{counted(plan.cuts[-1][1] + 1, 'operator')}, "
                f"the forward pass of this one {chain.num_operators}; {REMEDY}"
            )
        return plan.cuts

    layers, _ = layers_of(
        call.fun,
        call.args,
        call.kwargs,
        call.signature,
        cut,
        statistics=statistics,
        joins_attention=plan.joins_attention,
        joins_experts=plan.joins_experts,
    )
    if layers.batch_size != plan.batch_size:
        raise PlanError(
            f"the plan is for a batch of {counted(plan.batch_size, 'row')}, this one has "
            f"{layers.batch_size}; {REMEDY}"
        )
    return layers


def _check(
    layers: Layering,
    plan: Plan,
    stage: Stage,
    layer: Layer,
    decision: GraphDecision,
    *,
    is_new: bool,
) -> None:
    """Check that a decision is one about a layer, and places its state as the plan says.

    Raises:
        PlanError: it is not.
    """
    k = layer.layer
    piece = layers.graph(k, k, plan.num_microbatches, stage.remat)
    try:
        if is_new:
            verify_decision(piece.graph, decision, stage.mesh)
    except PlanError as error:
        raise PlanError(
            f"the plan is for another step or other shapes: layer {k}: {error}; {REMEDY}"
        ) from error
    names = layers.state_names(k)
    state = [
        (name, piece.graph.tensors[piece.graph.inputs[i]].shape, decision.inputs[i])
        for name, i in zip(names, piece.state, strict=True)
    ]
    if state != [(item.name, item.shape, item.layout) for item in layer.arguments]:
        raise PlanError(
            f"layer {k}: the plan says other names, shapes or layouts of its state than the step "
            "and the decision; plan the step again"
        )
