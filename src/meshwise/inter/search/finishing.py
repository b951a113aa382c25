"""From what the search found to a plan that can be read and simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import Cluster
from meshwise.inter.cost_table.variant_costs import LayerSource, RunPlan, VariantCosts
from meshwise.inter.layer_cost.passes import pass_seconds
from meshwise.inter.layer_cost.state_costs import Entry
from meshwise.inter.search.layer_work import state_arguments, with_work
from meshwise.inter.search.memory_guard import check_pipeline_fits
from meshwise.inter.search.search import FoundPipeline
from meshwise.inter.search.split_stage import SplitLayer, at_peak, with_weights_apart
from meshwise.inter.stages.placement import place_stages
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageSpan, in_flight
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.counts.contents import Argument
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fingerprint import fingerprint, joint_fingerprint
from meshwise.plan.fits import REPORT
from meshwise.plan.places import device_memory_bytes
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Remat, Stage
from meshwise.schedules.delay import with_delays
from meshwise.schedules.in_flight import held_on_mesh
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.stage_run import simulate_stages
from meshwise.simulate.timeline import Timeline
from meshwise.simulate.weight_delays import asked_delays
from meshwise.system.identity import Same


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerFacts:
    """What a plan says of a planned layer; equal layers that share one entry share these.

    Attributes:
        decision: Number of its decision in the plan.
        forward_s: Forward pass of one micro-batch.
        backward_s: Backward pass of one micro-batch.
        state: Its parameters and optimizer state, without names.
    """

    decision: int
    forward_s: float
    backward_s: float
    state: tuple[Argument, ...]


class _KnownLayers:
    """Facts of planned layers by the identity of their entry, and their decisions, each once."""

    def __init__(self) -> None:
        self.decisions: dict[GraphDecision, int] = {}
        self._facts: dict[Same, _LayerFacts] = {}

    def facts(self, piece: PieceGraph, plan: Entry, mesh: LogicalMesh) -> _LayerFacts:
        """Return the facts of a layer."""
        if Same(plan) not in self._facts:
            decision = plan.decision
            ahead, back = pass_seconds(piece, decision, mesh, plan.loop_s)
            found = _LayerFacts(
                decision=self.decisions.setdefault(decision, len(self.decisions)),
                forward_s=ahead,
                backward_s=back,
                state=state_arguments(piece, decision),
            )
            self._facts[Same(plan)] = found
        return self._facts[Same(plan)]


class NamedLayers(LayerSource, Protocol):
    """Layers that know the names of their own state."""

    def state_names(self, layer: int) -> tuple[str, ...]:
        """Names of parameters and optimizer state, in the order of `PieceGraph.state`."""
        ...


def finished(
    source: NamedLayers,
    cluster: Cluster,
    found: FoundPipeline,
    costs: VariantCosts,
    *,
    batch_size: int,
    step_flop: float,
    memory_bytes: int | None = None,
    tied: Sequence[str] = (),
    cuts: Sequence[tuple[int, int]] = (),
) -> tuple[Plan, Timeline]:
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
    table = schedule.table(len(chosen), count, num_meshes)
    splits_backward = table.splits_backward or schedule.delays_weights
    known = _KnownLayers()
    stages = tuple(
        _stage(source, found, costs, index, place, known, splits_backward=splits_backward)
        for index, place in enumerate(first)
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
        table,
        hides_transfers=schedule.hides_transfers,
    )

    def piece(number: int, layer: Layer) -> PieceGraph:
        stage = chosen[number]
        return costs.piece(layer.layer, found.variants[stage.submesh][stage.variant], count)

    bare = Plan(
        # As its file gives it: without what a user's own kind of cluster can do besides.
        cluster=Cluster(name=cluster.name, groups=cluster.groups),
        batch_size=batch_size,
        num_microbatches=count,
        schedule=schedule.table_name,
        hides_transfers=schedule.hides_transfers,
        stages=stages,
        step_time_s=found.plan.total_s,
        gap=_gap(found.plan),
        space=found.plan.space,
        simulated_s=timeline.step_time_s,
        bubble_share=timeline.bubble_share,
        exposed_s=max(timeline.exposed_s),
        tried=tuple(sorted(found.tried.items())),
        step_flop=step_flop,
        tied=tuple(tied),
        cuts=tuple(cuts),
        decisions=tuple(known.decisions),
        delays=delays,
        fingerprint=pipeline_fingerprint(stages, lambda c, remat: costs.graph(c, remat, count)),
    )

    plan = with_work(bare, piece)

    def memory(stage: Stage) -> int:
        return memory_bytes or device_memory_bytes(stage, cluster)

    check_pipeline_fits(plan, piece, memory, REPORT)
    return plan, timeline


def stage_decisions(
    found: FoundPipeline, costs: VariantCosts
) -> tuple[tuple[GraphDecision, ...], ...]:
    """For each stage the plans of its layers."""
    return tuple(
        tuple(plan.decision for plan in stage_plan(found, costs, stage).entries)
        for stage in found.plan.stages
    )


def stage_plan(found: FoundPipeline, costs: VariantCosts, stage: StageSpan) -> RunPlan:
    """The plans of the layers of a stage."""
    if stage in found.replanned:
        return found.replanned[stage]
    variant = found.variants[stage.submesh][stage.variant]
    count = found.problem.num_microbatches
    return costs.run_plan(variant, count, stage.first_layer, stage.last_layer)


def _on_shared_meshes(stages: Sequence[Stage], table: Schedule) -> tuple[Stage, ...]:
    """With the micro-batches that each holds when its mesh holds most."""
    sizes = [float(stage.microbatch_bytes) for stage in stages]
    held: dict[int, int] = {}
    for mesh in range(table.num_meshes):
        held |= held_on_mesh(table, mesh, sizes)
    return tuple(replace(stage, in_flight=held[k]) for k, stage in enumerate(stages))


def _gap(plan: StagePlan) -> float:
    """Return (step time - bound) / step time."""
    return max(0.0, 1 - plan.bound_s / plan.total_s) if plan.total_s else 0.0


def pipeline_fingerprint(
    stages: Sequence[Stage], graph_of: Callable[[int, Remat], PieceGraph]
) -> str:
    """Return the fingerprint of a plan for a pipeline.

    Args:
        stages: Its stages.
        graph_of: Gives the graph that was planned of a layer that others are equal to.
    """
    known: dict[tuple[int, Remat], str] = {}
    found: list[str] = []
    for stage in stages:
        for layer in stage.layers:
            key = (layer.equal_to, stage.remat)
            if key not in known:
                known[key] = fingerprint(graph_of(*key).graph)
            found.append(known[key])
    return joint_fingerprint(found)


def _stage(
    source: NamedLayers,
    found: FoundPipeline,
    costs: VariantCosts,
    index: int,
    first_device: int,
    known: _KnownLayers,
    *,
    splits_backward: bool,
) -> Stage:
    """Return a stage, without what it does in a step."""
    problem, span = found.problem, found.plan.stages[index]
    variant = found.variants[span.submesh][span.variant]
    count, num_stages = problem.num_microbatches, len(found.plan.stages)
    run = stage_plan(found, costs, span)
    memory = run.memory
    numbers = range(span.first_layer, span.last_layer + 1)
    pieces = [costs.piece(k, variant, count) for k in numbers]
    facts = [
        known.facts(piece, plan, variant.mesh)
        for piece, plan in zip(pieces, run.entries, strict=True)
    ]
    is_last = index == num_stages - 1
    submesh = problem.costs.submeshes[span.submesh]
    whole = Stage(
        layers=tuple(
            Layer(
                layer=k,
                equal_to=source.classes[k],
                arguments=tuple(
                    replace(argument, name=name)
                    for name, argument in zip(source.state_names(k), layer.state, strict=True)
                ),
                decision=layer.decision,
            )
            for k, layer in zip(numbers, facts, strict=True)
        ),
        submesh=found.kinds[span.submesh].shape,
        first_device=first_device,
        mesh=variant.mesh,
        remat=variant.remat,
        forward_s=sum(layer.forward_s for layer in facts),
        backward_s=sum(layer.backward_s for layer in facts),
        forward_gather_s=run.arriving_s,
        backward_gather_s=run.returning_s,
        once_s=run.once_s,
        resident_bytes=memory.resident_bytes,
        microbatch_bytes=memory.microbatch_bytes,
        temporary_bytes=memory.temporary_bytes,
        in_flight=round(in_flight(problem, found.plan.stages, index)),
        memory_bytes=int(submesh.memory_bytes + submesh.reserved_bytes),
        send_bytes=0 if is_last else source.crossing_bytes(span.last_layer) // count,
    )
    if not splits_backward:
        return whole
    layers = [
        SplitLayer(piece=piece, decision=plan.decision, backward_s=layer.backward_s)
        for piece, plan, layer in zip(pieces, run.entries, facts, strict=True)
    ]
    return with_weights_apart(whole, layers)
