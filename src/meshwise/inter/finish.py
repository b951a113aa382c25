"""From what the search found to a plan that can be read and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from meshwise.cluster.spec import Cluster
from meshwise.inter.conditioned import Entry
from meshwise.inter.guard import check_pipeline_fits, device_memory_bytes
from meshwise.inter.passes import pass_seconds
from meshwise.inter.piece import PieceGraph
from meshwise.inter.pipeline_plan import LayerPlan, PipelinePlan, PipelineStage
from meshwise.inter.placement import place_stages
from meshwise.inter.search import Found
from meshwise.inter.simulated_plan import asked_delays, simulate_stages
from meshwise.inter.split_stage import SplitLayer, at_peak, with_weights_apart
from meshwise.inter.stage_problem import Stage
from meshwise.inter.variants import LayerSource, RunPlan, VariantCosts
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fits import REPORT
from meshwise.schedules.delay import with_delays
from meshwise.schedules.in_flight import held_on_mesh
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.timeline import Timeline

# Seconds of the forward and backward pass by the `id` of a plan of a layer.
_Passes: TypeAlias = dict[int, tuple[float, float]]


class _Decisions:
    """The decisions of a plan, each different one once."""

    def __init__(self) -> None:
        self.numbers: dict[GraphDecision, int] = {}
        # Equal layers share one plan, which lives as long as the search; it is looked up once.
        self._known: dict[int, int] = {}

    def number(self, plan: Entry) -> int:
        """The number of a layer's decision."""
        if id(plan) not in self._known:
            found = self.numbers.setdefault(plan.decision, len(self.numbers))
            self._known[id(plan)] = found
        return self._known[id(plan)]


class NamedLayers(LayerSource, Protocol):
    """Layers that know the names of their own state."""

    def state_names(self, layer: int) -> tuple[str, ...]:
        """Names of parameters and optimizer state, in the order of `PieceGraph.state`."""
        ...


def finished(
    source: NamedLayers,
    cluster: Cluster,
    found: Found,
    costs: VariantCosts,
    *,
    batch_size: int,
    step_flop: float,
    memory_bytes: int | None = None,
    tied: Sequence[str] = (),
    cuts: Sequence[tuple[int, int]] = (),
) -> tuple[PipelinePlan, Timeline]:
    """The plan and its simulated timeline.

    Args:
        source: The layers.
        cluster: Where they run.
        found: What the search found.
        costs: Its plans of layers.
        batch_size: Rows of the whole batch.
        step_flop: FLOP of the forward pass on the whole batch.
        memory_bytes: Of a device, as it was asked for; None: what the cluster has.
        tied: Names of parameters that several layers read.
        cuts: First and last operator of each layer.

    Raises:
        WaitingWeightsError: the backward pass is split, and what waits for gradients of weights
            does not fit.
        PlanError: the plan does not fit, which is an error of the planner.
    """
    chosen = found.plan.stages
    shapes = [found.kinds[s.submesh].shape for s in chosen]
    first = [s.first_device for s in chosen]
    schedule, count = found.problem.schedule, found.problem.num_microbatches
    is_placed = any(found.problem.costs.submeshes[s.submesh].starts is not None for s in chosen)
    if schedule.chunks == 1 and not is_placed:
        first = list(place_stages(shapes, cluster.num_hosts, cluster.devices_per_host))
    num_meshes = len(set(first))
    table = make_schedule(
        schedule.table_name,
        num_stages=len(chosen),
        num_microbatches=count,
        num_meshes=num_meshes,
    )
    passes: _Passes = {}
    decisions = _Decisions()
    stages = tuple(
        _stage(source, found, costs, stage, index, place, passes, decisions, table)
        for index, (stage, place) in enumerate(zip(chosen, first, strict=True))
    )
    if num_meshes < len(stages):
        stages = _on_shared_meshes(stages, table)
    delays = asked_delays(schedule, stages, cluster, count)
    if delays:
        table = with_delays(table, delays)
    if table.splits_backward:
        stages = tuple(at_peak(stage, table, number) for number, stage in enumerate(stages))
    timeline = simulate_stages(
        stages,
        cluster,
        schedule.table_name,
        count,
        hides_transfers=schedule.hides_transfers,
        delays=delays,
    )
    plan = PipelinePlan(
        # As its file gives it: without what a user's own kind of cluster can do besides.
        cluster=Cluster(name=cluster.name, groups=cluster.groups),
        batch_size=batch_size,
        num_microbatches=count,
        schedule=schedule.table_name,
        hides_transfers=schedule.hides_transfers,
        stages=stages,
        step_time_s=found.plan.total_s,
        bound_s=found.plan.bound_s,
        space=found.plan.space,
        simulated_s=timeline.step_time_s,
        bubble_share=timeline.bubble_share,
        exposed_s=max(timeline.exposed_s),
        tried=tuple(sorted(found.tried.items())),
        step_flop=step_flop,
        tied=tuple(tied),
        cuts=tuple(cuts),
        decisions=tuple(decisions.numbers),
        delays=delays,
    )

    def piece(number: int, layer: LayerPlan) -> PieceGraph:
        stage = chosen[number]
        return costs.piece(layer.layer, found.variants[stage.submesh][stage.variant], count)

    def memory(stage: PipelineStage) -> int:
        return memory_bytes or device_memory_bytes(stage, cluster)

    check_pipeline_fits(plan, piece, memory, REPORT)
    return plan, timeline


def stage_decisions(found: Found, costs: VariantCosts) -> tuple[tuple[GraphDecision, ...], ...]:
    """For each stage the plans of its layers."""
    return tuple(
        tuple(plan.decision for plan in stage_plan(found, costs, stage).entries)
        for stage in found.plan.stages
    )


def stage_plan(found: Found, costs: VariantCosts, stage: Stage) -> RunPlan:
    """The plans of the layers of a stage."""
    if stage in found.replanned:
        return found.replanned[stage]
    variant = found.variants[stage.submesh][stage.variant]
    count = found.problem.num_microbatches
    return costs.run_plan(variant, count, stage.first_layer, stage.last_layer)


def _on_shared_meshes(
    stages: Sequence[PipelineStage], table: Schedule
) -> tuple[PipelineStage, ...]:
    """With the micro-batches that each holds when its mesh holds most."""
    sizes = [float(stage.microbatch_bytes) for stage in stages]
    held: dict[int, int] = {}
    for mesh in range(table.num_meshes):
        held |= held_on_mesh(table, mesh, sizes)
    return tuple(replace(stage, in_flight=held[k]) for k, stage in enumerate(stages))


def _stage(
    source: NamedLayers,
    found: Found,
    costs: VariantCosts,
    stage: Stage,
    index: int,
    first_device: int,
    passes: _Passes,
    decisions: _Decisions,
    table: Schedule,
) -> PipelineStage:
    problem, kind = found.problem, found.kinds[stage.submesh]
    submesh = problem.costs.submeshes[stage.submesh]
    variant = found.variants[stage.submesh][stage.variant]
    count = problem.num_microbatches
    plan_of_run = stage_plan(found, costs, stage)
    plans = plan_of_run.entries
    numbers = range(stage.first_layer, stage.last_layer + 1)
    pieces = [costs.piece(k, variant, count) for k in numbers]
    forward_s = backward_s = 0.0
    for piece, plan in zip(pieces, plans, strict=True):
        # Equal layers with equal states share one plan.
        if id(plan) not in passes:
            passes[id(plan)] = pass_seconds(piece, plan.decision, variant.mesh, plan.loop_s)
        ahead, back = passes[id(plan)]
        forward_s, backward_s = forward_s + ahead, backward_s + back
    in_flight = problem.schedule.in_flight(
        len(found.plan.stages) - index, len(found.plan.stages), count
    )
    is_last = index == len(found.plan.stages) - 1
    whole = PipelineStage(
        first_layer=stage.first_layer,
        last_layer=stage.last_layer,
        submesh=kind.shape,
        first_device=first_device,
        mesh=variant.mesh,
        remat=variant.remat,
        forward_s=forward_s,
        backward_s=backward_s,
        forward_gather_s=plan_of_run.arriving_s,
        backward_gather_s=plan_of_run.returning_s,
        once_s=sum(p.once_s for p in plans),
        resident_bytes=sum(p.memory.resident_bytes for p in plans),
        microbatch_bytes=sum(p.memory.microbatch_bytes for p in plans),
        temporary_bytes=max(p.memory.temporary_bytes for p in plans),
        in_flight=round(in_flight),
        memory_bytes=int(submesh.memory_bytes + submesh.reserved_bytes),
        send_bytes=0 if is_last else source.crossing_bytes(stage.last_layer) // count,
        layers=tuple(
            LayerPlan(
                layer=k,
                equal_to=source.classes[k],
                inputs=tuple(
                    (
                        name,
                        piece.graph.tensors[piece.graph.inputs[i]].shape,
                        plan.decision.inputs[i],
                    )
                    for name, i in zip(source.state_names(k), piece.state, strict=True)
                ),
                decision=decisions.number(plan),
            )
            for k, piece, plan in zip(numbers, pieces, plans, strict=True)
        ),
    )
    if not (table.splits_backward or problem.schedule.delays_weights):
        return whole
    layers = [
        SplitLayer(piece=piece, decision=plan.decision, backward_s=passes[id(plan)][1])
        for piece, plan in zip(pieces, plans, strict=True)
    ]
    return with_weights_apart(whole, layers)
