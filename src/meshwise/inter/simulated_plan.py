"""The stages of a pipeline on the simulator, as they were planned or with something changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.spec import Cluster
from meshwise.errors import PlanError
from meshwise.inter.pipeline_consistent import check_places
from meshwise.inter.pipeline_plan import PipelinePlan, PipelineStage
from meshwise.inter.pipeline_schedule import PipelineSchedule
from meshwise.inter.simulated import Chunk, simulate_chunks
from meshwise.inter.stage_hosts import StageHosts, stage_hosts
from meshwise.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a simulation does otherwise than the plan; None: as the plan.

    Attributes:
        cluster: Where it runs: other links and memory; the times of stages stay those of the plan.
        schedule: Who runs what in which order.
        num_microbatches: In how many parts the same batch runs; times and bytes of one in
            proportion to its rows.
    """

    cluster: Cluster | None = None
    schedule: PipelineSchedule | None = None
    num_microbatches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One simulated step of a plan.

    Attributes:
        cluster: Where it ran.
        schedule: Its name in `schedules.registry`.
        num_microbatches: B.
        stages: With the times and bytes that were simulated.
        memory_bytes: For each stage what a device has.
        timeline: What happened.
        notes: What was taken for granted.
    """

    cluster: Cluster
    schedule: str
    num_microbatches: int
    stages: tuple[PipelineStage, ...]
    memory_bytes: tuple[int, ...]
    timeline: Timeline
    notes: tuple[str, ...]

    @property
    def too_large(self) -> tuple[int, ...]:
        """The stages that need more memory than a device has."""
        pairs = zip(self.timeline.peak_bytes, self.memory_bytes, strict=True)
        return tuple(k for k, (peak, limit) in enumerate(pairs) if peak > limit)


def simulate_plan(plan: PipelinePlan, changes: Changes | None = None) -> Simulation:
    """One step of a plan.

    Raises:
        PlanError: the cluster has no place for the stages, or the schedule or the number of
            micro-batches does not fit.
    """
    changes = changes or Changes()
    cluster = changes.cluster or plan.cluster
    check_places(plan, cluster)
    schedule, hides = plan.schedule, plan.hides_transfers
    if changes.schedule is not None:
        schedule, hides = changes.schedule.table_name, changes.schedule.hides_transfers
    count = changes.num_microbatches or plan.num_microbatches
    if plan.batch_size % count:
        raise PlanError(f"{count} micro-batches do not divide the batch of {plan.batch_size}")
    stages = plan.stages
    if count != plan.num_microbatches:
        stages = tuple(_cut_into(s, plan.num_microbatches, count) for s in plan.stages)
    return Simulation(
        cluster=cluster,
        schedule=schedule,
        num_microbatches=count,
        stages=stages,
        memory_bytes=_memory_bytes(plan, changes.cluster),
        timeline=simulate_stages(stages, cluster, schedule, count, hides_transfers=hides),
        notes=tuple(_notes(plan, cluster, count)),
    )


def simulate_stages(
    stages: Sequence[PipelineStage],
    cluster: Cluster,
    schedule: str,
    num_microbatches: int,
    *,
    hides_transfers: bool,
) -> Timeline:
    """One step of stages that have a place in the cluster.

    Raises:
        PlanError: the schedule does not allow these sizes.
    """
    places = [_place(stage, cluster) for stage in stages]
    return simulate_chunks(
        cluster,
        schedule,
        num_microbatches,
        [chunk_of(stage) for stage in stages],
        [(place.hosts, place.num_devices) for place in places],
        [stage.send_bytes for stage in stages[:-1]],
        hides_transfers=hides_transfers,
    )


def chunk_of(stage: PipelineStage) -> Chunk:
    """A stage as the simulator takes it."""
    return Chunk(
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        once_s=stage.once_s,
        resident_bytes=stage.resident_bytes,
        microbatch_bytes=stage.microbatch_bytes,
        temporary_bytes=stage.temporary_bytes,
        forward_gather_s=stage.forward_gather_s,
        backward_gather_s=stage.backward_gather_s,
        weight_s=None if stage.weights is None else stage.weights.seconds,
        weight_bytes=None if stage.weights is None else stage.weights.held_bytes,
    )


def _place(stage: PipelineStage, cluster: Cluster) -> StageHosts:
    place = stage_hosts(stage, cluster)
    assert place is not None  # the plan was made for it, or `check_places` has seen it
    return place


def _cut_into(stage: PipelineStage, planned: int, count: int) -> PipelineStage:
    """The stage with other micro-batches; what is not of rows alone is never taken smaller."""
    ratio, late = planned / count, stage.weights
    return replace(
        stage,
        forward_s=stage.forward_s * ratio,
        backward_s=stage.backward_s * ratio,
        forward_gather_s=stage.forward_gather_s * ratio,
        backward_gather_s=stage.backward_gather_s * ratio,
        microbatch_bytes=math.ceil(stage.microbatch_bytes * ratio),
        temporary_bytes=math.ceil(stage.temporary_bytes * max(ratio, 1.0)),
        send_bytes=math.ceil(stage.send_bytes * ratio),
        weights=late
        and replace(
            late, seconds=late.seconds * ratio, held_bytes=math.ceil(late.held_bytes * ratio)
        ),
    )


def _memory_bytes(plan: PipelinePlan, other: Cluster | None) -> tuple[int, ...]:
    """What a device of each stage has: the least of its hosts on another cluster."""
    if other is None:
        return tuple(stage.memory_bytes for stage in plan.stages)
    return tuple(
        min(other.host_at(h).device.memory_bytes for h in _place(stage, other).hosts)
        for stage in plan.stages
    )


def _notes(plan: PipelinePlan, cluster: Cluster, num_microbatches: int) -> list[str]:
    notes: list[str] = []
    if num_microbatches != plan.num_microbatches:
        notes.append(
            f"times and bytes of a micro-batch are those of the plan's {plan.num_microbatches} "
            f"micro-batches in proportion to rows; plan with --microbatches {num_microbatches} "
            "for exact ones"
        )
    moved: dict[tuple[str, str], list[str]] = {}
    for number, stage in enumerate(plan.stages):
        before, now = _devices(stage, plan.cluster), _devices(stage, cluster)
        if before != now:
            moved.setdefault((before, now), []).append(str(number))
    for (before, now), numbers in moved.items():
        notes.append(
            f"stages planned for {before}, with their times, are here on {now} (stage "
            f"{', '.join(numbers)}); plan for that cluster for its own times"
        )
    return notes


def _devices(stage: PipelineStage, cluster: Cluster) -> str:
    names = {cluster.host_at(h).device.name for h in _place(stage, cluster).hosts}
    return " and ".join(sorted(names))
