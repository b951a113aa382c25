"""The stages of a pipeline on the simulator, as they were planned or with something changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.plan.places import check_places, device_memory_bytes, placed
from meshwise.plan.record import ONE_PROGRAM, PlanRecord
from meshwise.plan.stage import Stage
from meshwise.plan.text.device_memory import mesh_memory_bytes, too_large
from meshwise.schedules.delay import with_delays
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import make_schedule
from meshwise.simulate.stage_pipeline import one_a_mesh, stage_pipeline
from meshwise.simulate.timeline import Timeline
from meshwise.simulate.weight_delays import asked_delays
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Differences between a simulation and the plan; None where there is none.

    Attributes:
        cluster: The cluster on which it runs: other links and memory, the same times of stages.
        schedule: The schedule in place of the plan's.
        num_microbatches: Parts in which the same batch runs; times and bytes of one are in
            proportion to its rows.
    """

    cluster: ClusterSpec | None = None
    schedule: PipelineSchedule | None = None
    num_microbatches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One simulated step of a plan.

    Attributes:
        cluster: The cluster on which it ran.
        schedule: The name of the schedule in `schedules.registry`.
        num_microbatches: Micro-batches of the step.
        stages: The stages, with the times and bytes that were simulated.
        mesh_of_stage: The mesh of each stage.
        memory_bytes: For each mesh the memory of a device.
        timeline: The timeline of the step.
        notes: Texts that say what was taken for granted.
    """

    cluster: ClusterSpec
    schedule: str
    num_microbatches: int
    stages: tuple[Stage, ...]
    mesh_of_stage: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    timeline: Timeline
    notes: tuple[str, ...]

    def stages_of(self, mesh: int) -> tuple[Stage, ...]:
        """Return the stages of a mesh."""
        pairs = zip(self.mesh_of_stage, self.stages, strict=True)
        return tuple(stage for m, stage in pairs if m == mesh)

    @property
    def of_timeline(self) -> str:
        """What the timeline is of: a `stage` each, or a `mesh` with several stages."""
        return "stage" if len(self.memory_bytes) == len(self.stages) else "mesh"

    @property
    def too_large(self) -> tuple[int, ...]:
        """The meshes that need more memory than a device has."""
        return too_large(self.timeline.peak_bytes, self.memory_bytes)


def simulate_plan(plan: PlanRecord, changes: Changes | None = None) -> Simulation:
    """Simulate one step of a plan.

    Args:
        plan: The plan.
        changes: The differences from the plan; none by default.

    Raises:
        PlanError: the cluster has no place for the stages, the schedule or the number of
            micro-batches does not fit, or the plan does not say its cluster.
    """
    changes = changes or Changes()
    cluster = changes.cluster or plan.cluster
    if cluster is None:
        raise PlanError(
            "the plan does not say its cluster, as files of earlier versions for one mesh; give a "
            "cluster, or plan again"
        )
    check_places(plan.stages, cluster)
    if plan.schedule == ONE_PROGRAM:
        return _one_program(plan, cluster, changes)
    hides = plan.hides_transfers
    count = changes.num_microbatches or plan.num_microbatches
    if plan.batch_size % count:
        raise PlanError(f"{count} micro-batches do not divide the batch of {plan.batch_size}")
    stages = plan.stages
    if count != plan.num_microbatches:
        stages = tuple(_cut_into(s, plan.num_microbatches, count) for s in plan.stages)
    if changes.schedule is None:
        table = make_schedule(
            plan.schedule,
            num_stages=len(stages),
            num_microbatches=count,
            num_meshes=plan.num_meshes,
            delays=plan.delays,
        )
    else:
        least = changes.schedule.chunks
        chunks = (
            max(least, len(stages) // plan.num_meshes) if changes.schedule.any_chunks else least
        )
        if len(stages) != chunks * plan.num_meshes:
            raise PlanError(
                f"schedule {changes.schedule.name} needs {chunks} on each mesh; the plan has "
                f"{counted(len(stages), 'stage')} on {counted(plan.num_meshes, 'mesh')}; plan with "
                "that schedule"
            )
        if changes.schedule.mesh_of_stage(len(stages), plan.num_meshes) != plan.mesh_of_stage:
            raise PlanError(
                f"schedule {changes.schedule.name} puts stages on other meshes than the plan; plan "
                "with that schedule"
            )
        hides = changes.schedule.hides_transfers
        delays = asked_delays(changes.schedule, stages, cluster, count)
        table = changes.schedule.table(len(stages), count, plan.num_meshes)
        table = with_delays(table, delays) if delays else table
    pipeline = stage_pipeline(stages, cluster, table.mesh_of_stage, hides_transfers=hides)
    return Simulation(
        cluster=cluster,
        schedule=table.name,
        num_microbatches=count,
        stages=stages,
        mesh_of_stage=plan.mesh_of_stage,
        memory_bytes=_memory_bytes(plan, changes.cluster),
        timeline=pipeline.simulate(table),
        notes=tuple(_notes(plan, cluster, count)),
    )


def _one_program(plan: PlanRecord, cluster: ClusterSpec, changes: Changes) -> Simulation:
    """Simulate a step that is one program: one task, of the time that was predicted."""
    if changes.schedule is not None or changes.num_microbatches is not None:
        raise PlanError(
            "the step runs as one program on one mesh, micro-batches in a loop inside; plan again "
            "for another number of them, or for a schedule with stages"
        )
    pipeline = stage_pipeline(plan.stages, cluster, (0,), hides_transfers=False)
    return Simulation(
        cluster=cluster,
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        stages=plan.stages,
        mesh_of_stage=plan.mesh_of_stage,
        memory_bytes=_memory_bytes(plan, changes.cluster),
        timeline=pipeline.simulate(GPIPE.table(1, 1, 1)),
        notes=tuple(_notes(plan, cluster, plan.num_microbatches)),
    )


def _cut_into(stage: Stage, planned: int, count: int) -> Stage:
    """Return the stage with other micro-batches; what not only rows decide never gets less."""
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


def _memory_bytes(plan: PlanRecord, other: ClusterSpec | None) -> tuple[int, ...]:
    """Return what a device of each mesh has: the least of its hosts on another cluster."""
    if other is None:
        return mesh_memory_bytes(plan)
    return tuple(device_memory_bytes(stage, other) for stage in one_a_mesh(plan.stages))


def _notes(plan: PlanRecord, cluster: ClusterSpec, num_microbatches: int) -> list[str]:
    notes: list[str] = []
    if num_microbatches != plan.num_microbatches:
        notes.append(
            f"times and bytes of a micro-batch are those of the plan's {plan.num_microbatches} "
            f"micro-batches in proportion to rows; plan with --microbatches {num_microbatches} "
            "for exact ones"
        )
    moved: dict[tuple[str, str], list[str]] = {}
    for number, stage in enumerate(plan.stages):
        now = _devices(stage, cluster)
        before = stage.mesh.device.name
        if plan.cluster is not None:
            before = _devices(stage, plan.cluster)
        if before != now:
            moved.setdefault((before, now), []).append(str(number))
    for (before, now), numbers in moved.items():
        notes.append(
            f"stages planned for {before}, with their times, are here on {now} (stage "
            f"{', '.join(numbers)}); plan for that cluster for its own times"
        )
    return notes


def _devices(stage: Stage, cluster: ClusterSpec) -> str:
    names = {cluster.host_at(h).device.name for h in placed(stage, cluster).hosts}
    return " and ".join(sorted(names))
