"""From a schedule and the costs of its stages to the timeline of one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwise.errors import ProgramError
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.engine import EngineRun, run_streams
from meshwise.simulate.kernels.events import NUM_FLOWS
from meshwise.simulate.links import HostLinks, check_flow
from meshwise.simulate.measure import exposed_s
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.step_tables import Wires, streams_of, task_of, wires_of
from meshwise.simulate.timeline import APPLY, ONCE, Event, Timeline, TransferEvent
from meshwise.units import counted


@dataclass(frozen=True, slots=True)
class PricedPipeline:
    """Stages on their meshes, and what passes between them; any schedule may run them.

    Attributes:
        stages: The costs of each stage.
        boundaries: The values that pass between stages; several may join the same two.
        hosts: Links of the hosts that the flows name.
        overlap: Whether meshes compute while transfers run; else sender and receiver stop for
            each transfer, as in plain 1F1B.
    """

    stages: Sequence[StageCost]
    boundaries: Sequence[StageBoundary]
    hosts: Sequence[HostLinks]
    overlap: bool = True

    def step_time_s(self, schedule: Schedule) -> float:
        """Return the seconds of a step, as `simulate` finds them, and nothing else.

        Args:
            schedule: Who runs what in which order; verified.

        Raises:
            ProgramError: As `simulate`.
            ClusterError: As `simulate`.
        """
        return _run(self, schedule).run.makespan_s

    def simulate(self, schedule: Schedule) -> Timeline:
        """Return what one step does, and when.

        A mesh runs its tasks in order; then, for each of its stages, the gradients are applied.  A
        task starts when its mesh is free and every transfer to it has arrived.  A stage waits for
        its neighbour also where no boundary joins them.

        Args:
            schedule: Who runs what in which order; verified.

        Raises:
            ProgramError: Costs or boundaries do not fit the schedule, the backward is to be split
                but a stage has no time for its parts, or the order has a deadlock.
            ClusterError: A bandwidth is not a finite number above 0.
        """
        step = _run(self, schedule)
        run, duration_s = step.run, step.run.streams.duration_s
        first = run.streams.first.tolist()
        busy_s = tuple(sum(duration_s[a:b].tolist(), 0.0) for a, b in pairwise(first))
        everything = schedule.num_meshes * run.makespan_s
        memory = tuple(run.memory_steps(mesh) for mesh in range(schedule.num_meshes))
        return Timeline(
            step_time_s=run.makespan_s,
            bubble_share=1 - sum(busy_s) / everything if everything else 0.0,
            busy_s=busy_s,
            exposed_s=exposed_s(run, step.wires.transfers, step.wires.messages),
            peak_bytes=tuple(max(step.num_bytes for step in steps) for steps in memory),
            memory=memory,
            events=_events(schedule, run),
            transfers=_transfer_events(schedule, step.wires, run),
        )


class _Step(NamedTuple):
    """A step that was run.

    Attributes:
        run: The times of everything that happened.
        wires: What moved.
    """

    run: EngineRun
    wires: Wires


def _run(pipeline: PricedPipeline, schedule: Schedule) -> _Step:
    _check(pipeline, schedule)
    boundaries, hosts = pipeline.boundaries, pipeline.hosts
    wires = wires_of(schedule, boundaries, hosts, stops_meshes=not pipeline.overlap)
    streams = streams_of(schedule, pipeline.stages, wires)
    resident = np.zeros(schedule.num_meshes, np.int64)
    for mesh, stage in zip(schedule.mesh_of_stage, pipeline.stages, strict=True):
        resident[mesh] += stage.resident_bytes
    run = run_streams(streams, wires.transfers, wires.messages, hosts, resident)
    stuck = list(run.stuck())
    if stuck:
        told = [_missed(schedule, wires, *each) for each in stuck]
        raise ProgramError("deadlock: " + "; ".join(told))
    return _Step(run, wires)


def _missed(schedule: Schedule, wires: Wires, mesh: int, transfer: int) -> str:
    """Return which task a mesh cannot start, and what it waits for."""
    maker = task_of(schedule, int(wires.maker[transfer]))
    taker = task_of(schedule, int(wires.taker[transfer]))
    made_on = schedule.mesh_of_stage[maker.stage]
    return (
        f"on mesh {mesh} {taker} waits for the result of {maker}, which comes later on mesh "
        f"{made_on}"
    )


def _events(schedule: Schedule, run: EngineRun) -> tuple[Event, ...]:
    """Return what the meshes did; what took no time once a step is left out."""
    events: list[Event] = []
    for mesh, tasks in enumerate(schedule.tasks):
        here = slice(*run.streams.first[mesh : mesh + 2])
        starts, ends = run.start_s[here].tolist(), run.end_s[here].tolist()
        events += [
            Event(mesh, *task, start, end)
            for task, start, end in zip(tasks, starts, ends, strict=False)
        ]
        stages, after = schedule.stages_on(mesh), len(tasks)
        events += [
            Event(mesh, APPLY, stage, ONCE, start, end)
            for stage, start, end in zip(stages, starts[after:], ends[after:], strict=False)
            if end > start
        ]
    return tuple(events)


def _transfer_events(schedule: Schedule, wires: Wires, run: EngineRun) -> tuple[TransferEvent, ...]:
    """Return what moved, in order of start."""
    transfers = wires.transfers
    moved = np.flatnonzero(wires.messages.kinds[transfers.kind, NUM_FLOWS])
    moved = moved[np.argsort(run.transfer_start_s[moved], kind="stable")]
    count = schedule.num_microbatches
    maker = wires.maker[moved]
    columns = (
        transfers.source[moved],
        transfers.destination[moved],
        maker // count % schedule.num_stages,
        wires.taker[moved] // count % schedule.num_stages,
        maker % count,
        wires.num_bytes[transfers.kind[moved]],
        run.transfer_start_s[moved],
        run.transfer_end_s[moved],
    )
    return tuple(map(TransferEvent, *(column.tolist() for column in columns)))


def _check(pipeline: PricedPipeline, schedule: Schedule) -> None:
    stages, num_hosts = pipeline.stages, len(pipeline.hosts)
    if len(stages) != schedule.num_stages:
        raise ProgramError(
            f"costs of {counted(len(stages), 'stage')} for schedule {schedule.name} of "
            f"{schedule.num_stages}"
        )
    for b in pipeline.boundaries:
        if not 0 <= b.source < b.destination < schedule.num_stages:
            raise ProgramError(
                f"a boundary joins stages {b.source} and {b.destination}; it must join a lower to "
                f"a higher of {schedule.num_stages}"
            )
        for flow in (*b.forward, *b.backward):
            check_flow(f"the boundary of stages {b.source} and {b.destination}", flow, num_hosts)
    for stage, cost in enumerate(stages):
        parts = cost.activation_gradient_s, cost.weight_gradient_s
        if schedule.splits_backward and None in parts:
            raise ProgramError(
                f"schedule {schedule.name} splits the backward, but stage {stage} has no "
                "activation_gradient_s and weight_gradient_s"
            )
        for name in _seconds(schedule):
            if not 0 <= (seconds := getattr(cost, name)) < math.inf:
                raise ProgramError(f"stage {stage}: {name} is {seconds} s")


def _seconds(schedule: Schedule) -> tuple[str, ...]:
    """Return which seconds of stages a schedule has."""
    if schedule.forward_only:
        return ("forward_s",)
    if schedule.splits_backward:
        return ("forward_s", "activation_gradient_s", "weight_gradient_s", "apply_s")
    return ("forward_s", "backward_s", "apply_s")
