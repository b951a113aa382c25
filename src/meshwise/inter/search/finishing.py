"""From what the search found to a plan that can be read and simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.cost_table.variant_costs import LayerSource, VariantCosts
from meshwise.inter.layer_cost.arrival_bytes import ArrivalBytes
from meshwise.inter.layer_cost.arrivals import (
    ArrivalWork,
    arrival_works,
    planned_neighbours,
)
from meshwise.inter.layer_cost.waiting_values import waiting_bytes
from meshwise.inter.search.known_layers import KnownLayers, PlannedLayer
from meshwise.inter.search.layer_work import with_work
from meshwise.inter.search.memory_guard import check_pipeline_fits
from meshwise.inter.search.passing import with_passing
from meshwise.inter.search.search import FoundPipeline, stage_plan
from meshwise.inter.search.unsearched_memory import check_room
from meshwise.inter.stages.placement import place_stages
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageSpan, in_flight
from meshwise.pieces.neighbours import CrossingNames, Neighbours
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fingerprint import pipeline_fingerprint
from meshwise.plan.fits import REPORT
from meshwise.plan.places import device_memory_bytes
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage, WeightGradients
from meshwise.plan.text.explain import UNPRICED
from meshwise.schedules.delay import with_delays
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.stage_pipeline import one_a_mesh, stage_pipeline
from meshwise.simulate.timeline import Timeline
from meshwise.simulate.weight_delays import asked_delays, at_most_held
from meshwise.units import counted, seconds_text

# Of the step time; less is not told.
_MUCH = 0.05


class NamedLayers(LayerSource, Protocol):
    """Layers that know the names of their own state and activations."""

    def state_names(self, layer: int) -> tuple[str, ...]:
        """Names of parameters and optimizer state, in the order of `PieceGraph.state`."""
        ...

    def crossing_names(self, layer: int) -> CrossingNames:
        """The activations that cross the cuts of a layer."""
        ...

    def argument_names(self, layer: int) -> list[str]:
        """Names of the step's arguments that the graph of a layer takes, in its order."""
        ...


class _Placed(NamedTuple):
    """Stages at their places.

    Attributes:
        stages: The stages.
        table: Their schedule.
        delays: Of gradients of weights in it.
        arrivals: What each layer does to values of others on its mesh.
    """

    stages: tuple[Stage, ...]
    table: Schedule
    delays: tuple[int, ...]
    arrivals: tuple[ArrivalWork, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The stages that were chosen.

    Attributes:
        source: The layers.
        found: What the search found.
        costs: Its plans of layers.
        transfers: How tensors pass between hosts.
        known: What a plan says of layers.
        decisions: Those of the plan, each once, with its number.
    """

    source: NamedLayers
    found: FoundPipeline
    costs: VariantCosts
    transfers: str
    known: KnownLayers
    decisions: dict[GraphDecision, int] = field(default_factory=dict[GraphDecision, int])

    def placed(self, cluster: ClusterSpec) -> _Placed:
        """Return the stages at their places, also where there is no room for them.

        Args:
            cluster: Where they run.
        """
        problem, first = self.found.problem, self._first_devices(cluster)
        schedule, count = problem.schedule, problem.num_microbatches
        table = schedule.table(len(first), count, len(set(first)))
        stages = tuple(self._stage(index, first) for index in range(len(first)))
        neighbours = planned_neighbours(
            stages, first, tuple(self.decisions), self.piece, self.source.crossing_names
        )
        stages = with_passing(stages, cluster, neighbours, self.transfers)
        arrivals = arrival_works(neighbours)
        splits_backward = table.splits_backward or schedule.delays_weights
        finish = self._with_weights_apart if splits_backward else self._with_extra
        stages = tuple(
            _with_seconds(finish(index, stage, arrivals), arrivals)
            for index, stage in enumerate(stages)
        )
        if table.num_meshes < len(stages):
            stages = at_most_held(stages, table)
        # Delays may take what is left, not what values that wait need.
        stages = self._with_waiting(stages, neighbours, table)
        delays = asked_delays(schedule, stages, cluster, count)
        if delays:
            table = with_delays(table, delays)
            stages = self._with_waiting(stages, neighbours, table)
        if table.splits_backward:
            stages = at_most_held(stages, table)
        return _Placed(stages, table, delays, arrivals)

    def _with_waiting(
        self, stages: tuple[Stage, ...], neighbours: Neighbours, table: Schedule
    ) -> tuple[Stage, ...]:
        found = waiting_bytes(neighbours, stages, table, self.source.argument_names)
        pairs = zip(stages, found, strict=True)
        return tuple(replace(stage, waiting_bytes=more) for stage, more in pairs)

    def plan(
        self,
        cluster: ClusterSpec,
        placed: _Placed,
        timeline: Timeline,
        batch_size: int,
        step_flop: float,
    ) -> Plan:
        """Return the plan, without what its programs do.

        Args:
            cluster: Where it runs.
            placed: Its stages at their places.
            timeline: Of a simulated step.
            batch_size: Rows of the whole batch.
            step_flop: FLOP of the forward pass on the whole batch.
        """
        found, costs = self.found, self.costs
        schedule, count = found.problem.schedule, found.problem.num_microbatches
        return Plan(
            # As its file gives it: without what a user's own kind of cluster can do besides.
            cluster=ClusterSpec(name=cluster.name, groups=cluster.groups),
            batch_size=batch_size,
            num_microbatches=count,
            schedule=schedule.table_name,
            hides_transfers=schedule.hides_transfers,
            transfers=self.transfers if any(map(_passes, placed.stages)) else "",
            stages=placed.stages,
            step_time_s=timeline.step_time_s,
            gap=_gap(found.plan),
            space=found.plan.space,
            formula_s=found.plan.total_s,
            bubble_share=timeline.bubble_share,
            exposed_s=max(timeline.exposed_s),
            tried=tuple(sorted(found.tried.items())),
            step_flop=step_flop,
            warnings=(
                *_one_at_a_time(placed.stages, count),
                *_unsearched(placed, found.plan.total_s, count),
            ),
            decisions=tuple(self.decisions),
            delays=placed.delays,
            fingerprint=pipeline_fingerprint(
                placed.stages, lambda c, remat: costs.graph(c, remat, count).graph
            ),
        )

    def piece(self, number: int, layer: Layer) -> PieceGraph:
        """Return the graph that was planned of a layer of a stage."""
        return self._piece(self.found.plan.stages[number], layer.layer)

    def _piece(self, span: StageSpan, layer: int) -> PieceGraph:
        variant = self.found.variants[span.submesh][span.variant]
        return self.costs.piece(layer, variant, self.found.problem.num_microbatches)

    def _first_devices(self, cluster: ClusterSpec) -> Sequence[int]:
        spans, problem = self.found.plan.stages, self.found.problem
        is_placed = any(problem.costs.submeshes[s.submesh].starts is not None for s in spans)
        if problem.schedule.chunks > 1 or is_placed:
            return [s.first_device for s in spans]
        shapes = [self.found.kinds[s.submesh].shape for s in spans]
        return place_stages(shapes, cluster.num_hosts, cluster.devices_per_host)

    def _layers(self, index: int) -> list[PlannedLayer]:
        """Return the layers of a stage with their plans."""
        span = self.found.plan.stages[index]
        mesh = self.found.variants[span.submesh][span.variant].mesh
        entries = stage_plan(self.found, self.costs, span).entries
        return [
            PlannedLayer(self._piece(span, k), entry, mesh)
            for k, entry in enumerate(entries, span.first_layer)
        ]

    def _number(self, decision: GraphDecision) -> int:
        """Return the number of a decision in the plan."""
        return self.decisions.setdefault(decision, len(self.decisions))

    def _stage(self, index: int, first_devices: Sequence[int]) -> Stage:
        """Return a stage, without what it does in a step."""
        found, problem, source = self.found, self.found.problem, self.source
        span = found.plan.stages[index]
        variant = found.variants[span.submesh][span.variant]
        run = stage_plan(found, self.costs, span)
        memory, submesh = run.memory, problem.costs.submeshes[span.submesh]
        facts = [self.known.facts(layer) for layer in self._layers(index)]
        # What follows on its own mesh is not sent.
        sends = any(place != first_devices[index] for place in first_devices[index + 1 : index + 2])
        sent = source.crossing_bytes(span.last_layer) if sends else 0
        return Stage(
            layers=tuple(
                Layer(
                    layer=k,
                    equal_to=source.classes[k],
                    arguments=tuple(
                        replace(argument, name=name)
                        for name, argument in zip(source.state_names(k), layer.state, strict=True)
                    ),
                    decision=self._number(layer.decision),
                )
                for k, layer in enumerate(facts, span.first_layer)
            ),
            submesh=found.kinds[span.submesh].shape,
            first_device=first_devices[index],
            mesh=variant.mesh,
            remat=variant.remat,
            forward_s=sum(layer.forward_s for layer in facts),
            backward_s=sum(layer.backward_s for layer in facts),
            forward_gather_s=run.arriving_s,
            backward_gather_s=run.returning_s,
            once_s=run.once_s,
            resident_bytes=memory.resident_bytes,
            gradient_bytes=memory.gradient_bytes or None,
            microbatch_bytes=memory.microbatch_bytes,
            temporary_bytes=memory.temporary_bytes,
            in_flight=round(in_flight(problem, found.plan.stages, index)),
            memory_bytes=int(submesh.memory_bytes + submesh.reserved_bytes),
            send_bytes=sent // problem.num_microbatches,
        )

    def _with_weights_apart(
        self, index: int, stage: Stage, arrivals: Sequence[ArrivalWork]
    ) -> Stage:
        """Return a stage with its gradients of weights apart, none of which waits yet."""
        pairs = zip(self._layers(index), _extras(stage, arrivals), strict=True)
        apart = [self.known.weights_apart(layer, extra) for layer, extra in pairs]
        return replace(
            stage,
            temporary_bytes=max(layer.temporary_bytes for layer in apart),
            weights=WeightGradients(
                # A stage whose backward pass is nothing else may add up to more by rounding.
                seconds=min(sum(layer.seconds for layer in apart), stage.backward_s),
                held_bytes=sum(layer.held_bytes for layer in apart),
                waiting=0,
            ),
        )

    def _with_extra(self, index: int, stage: Stage, arrivals: Sequence[ArrivalWork]) -> Stage:
        """Return a stage with room for values of other layers that its layers change."""
        pairs = zip(self._layers(index), _extras(stage, arrivals), strict=True)
        most = max(self.known.temporary_bytes(layer, extra) for layer, extra in pairs)
        return replace(stage, temporary_bytes=max(stage.temporary_bytes, most))


def finished(
    source: NamedLayers,
    cluster: ClusterSpec,
    found: FoundPipeline,
    costs: VariantCosts,
    *,
    batch_size: int,
    step_flop: float,
    transfers: str = "",
    memory_bytes: int | None = None,
    tied: Sequence[str] = (),
    cuts: Sequence[tuple[int, int]] = (),
    known: KnownLayers | None = None,
) -> tuple[Plan, Timeline]:
    """The plan and its simulated timeline.

    Args:
        source: The layers.
        cluster: Where they run.
        found: What the search found.
        costs: Its plans of layers.
        batch_size: Rows of the whole batch.
        step_flop: FLOP of the forward pass on the whole batch.
        transfers: How tensors pass between hosts from stage to stage, one of
            `cross_mesh.strategies.STRATEGIES`; empty: each byte passes once.
        memory_bytes: Of a device, as it was asked for; None: what the cluster has.
        tied: Names of parameters that several layers read.
        cuts: First and last operator of each layer.
        known: What plans of these layers say of them, to be added to; None: nothing is known.

    Raises:
        UnsearchedMemoryError: there is no room for what the search did not count.
        PlanError: the plan does not fit, which is an error of the planner.
    """
    chosen = _Chosen(
        source=source,
        found=found,
        costs=costs,
        transfers=transfers,
        known=KnownLayers() if known is None else known,
    )
    schedule = found.problem.schedule
    placed = chosen.placed(cluster)
    hides, mesh_of_stage = schedule.hides_transfers, placed.table.mesh_of_stage
    pipeline = stage_pipeline(placed.stages, cluster, mesh_of_stage, hides_transfers=hides)
    timeline = pipeline.simulate(placed.table)
    changing = [k for k, s in enumerate(placed.stages) if any(_extras(s, placed.arrivals))]
    least_s = min(timeline.step_time_s, found.plan.total_s)
    check_room(
        placed.stages,
        placed.table,
        changing,
        least_s,
        found.spare_share,
    )
    bare = chosen.plan(cluster, placed, timeline, batch_size, step_flop)
    bare = replace(bare, tied=tuple(tied), cuts=tuple(cuts))
    plan = with_work(bare, chosen.piece, placed.arrivals)
    check_pipeline_fits(
        plan,
        chosen.piece,
        placed.arrivals,
        [stage.waiting_bytes for stage in placed.stages],
        lambda s: memory_bytes or device_memory_bytes(s, cluster),
        REPORT,
    )
    return plan, timeline


def _passes(stage: Stage) -> bool:
    """Return whether anything comes to a stage from another host."""
    return stage.forward_passing is not None or stage.backward_passing is not None


def _extras(stage: Stage, arrivals: Sequence[ArrivalWork]) -> list[ArrivalBytes]:
    """Return for each layer of a stage the bytes of values of others that it changes."""
    return [arrivals[layer.layer].extra for layer in stage.layers]


def _with_seconds(stage: Stage, arrivals: Sequence[ArrivalWork]) -> Stage:
    """With the seconds in which its layers change layouts of what comes from others."""
    mine = [arrivals[layer.layer] for layer in stage.layers]
    return replace(
        stage,
        once_s=stage.once_s + sum(a.once_s for a in mine),
        forward_s=stage.forward_s + sum(a.forward_s for a in mine),
        backward_s=stage.backward_s + sum(a.backward_s for a in mine),
    )


def _one_at_a_time(stages: Sequence[Stage], count: int) -> Iterator[str]:
    """Yield that stages cannot work at once, as there is only one micro-batch."""
    if count == 1 and len(one_a_mesh(stages)) > 1:
        yield (
            f"one micro-batch goes through {counted(len(stages), 'stage')}, so they compute one "
            'after the other; num_microbatches="auto", or a number of them, lets them compute at '
            "once"
        )


def _unsearched(placed: _Placed, step_time_s: float, count: int) -> Iterator[str]:
    """Yield what the search did not price, if that is much."""
    seconds = max(
        sum(count * (a.forward_s + a.backward_s) + a.once_s for a in mine)
        for mine in ([placed.arrivals[i.layer] for i in stage.layers] for stage in placed.stages)
    )
    if seconds > _MUCH * step_time_s:
        yield (
            f"{UNPRICED} for {seconds_text(seconds)} of a step. The search does not price this "
            "time, the simulation does. Another number of stages (mw.Auto(stages=...)) may need "
            "less"
        )


def _gap(plan: StagePlan) -> float:
    """Return (step time - bound) / step time."""
    return max(0.0, 1 - plan.bound_s / plan.total_s) if plan.total_s else 0.0
