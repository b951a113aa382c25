"""From a schedule and the costs of its stages to the timeline of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwise.errors import ProgramError
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Schedule, Task
from meshwise.simulate.actions import Action, Flow, HostLinks, Transfer
from meshwise.simulate.check import check_flow
from meshwise.simulate.engine import EngineRun, run_streams
from meshwise.simulate.measure import busy_s, exposed_s
from meshwise.simulate.mirrored_hosts import without_mirrored
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.timeline import APPLY, ONCE, Event, Timeline, TransferEvent
from meshwise.units import counted


def simulate_pipeline(
    schedule: Schedule,
    stages: Sequence[StageCost],
    boundaries: Sequence[StageBoundary],
    hosts: Sequence[HostLinks],
    *,
    overlap: bool = True,
) -> Timeline:
    """Return what one step does, and when.

    A mesh runs its tasks in order; then, for each of its stages, the gradients are applied.  A task
    starts when its mesh is free and every transfer to it has arrived.  A stage waits for its
    neighbour also where no boundary joins them.

    Args:
        schedule: Who runs what in which order; verified.
        stages: The costs of each stage.
        boundaries: The values that pass between stages; several may join the same two.
        hosts: Links of the hosts that the flows name.
        overlap: Whether meshes compute while transfers run; else sender and receiver stop for
            each transfer, as in plain 1F1B.

    Raises:
        ProgramError: Costs or boundaries do not fit the schedule, the backward is to be split but
            a stage has no time for its parts, or the order has a deadlock.
        ClusterError: A bandwidth is not a finite number above 0.
    """
    _check(schedule, stages, boundaries, len(hosts))
    wires = _wires(schedule, boundaries, hosts, overlap)
    streams = tuple(
        tuple(_actions(schedule, stages, mesh, wires)) for mesh in range(schedule.num_meshes)
    )
    resident = [0] * schedule.num_meshes
    for mesh, stage in zip(schedule.mesh_of_stage, stages, strict=True):
        resident[mesh] += stage.resident_bytes
    run = run_streams(streams, wires.transfers, hosts, resident)
    busy = busy_s(streams)
    everything = schedule.num_meshes * run.makespan_s
    return Timeline(
        step_time_s=run.makespan_s,
        bubble_share=1 - sum(busy) / everything if everything else 0.0,
        busy_s=busy,
        exposed_s=exposed_s(streams, wires.transfers, run),
        peak_bytes=tuple(max(step.num_bytes for step in steps) for steps in run.memory),
        memory=run.memory,
        events=_events(schedule, run),
        transfers=_transfer_events(wires, run),
    )


class _Wires(NamedTuple):
    """All messages of a step.

    Attributes:
        transfers: For the engine, without flows that mirror others.
        num_bytes: For each transfer the bytes of all its flows.
        ends: For each transfer the tasks that make it and that wait for it.
        into: For each task the transfers that it waits for.
        out_of: For each task the transfers that it makes.
    """

    transfers: list[Transfer]
    num_bytes: list[float]
    ends: list[tuple[Task, Task]]
    into: dict[Task, list[int]]
    out_of: dict[Task, list[int]]


class _Message(NamedTuple):
    """What one boundary sends of each micro-batch in one direction.

    Attributes:
        flows: To be simulated.
        num_bytes: Of all flows.
        blocking: Whether sender and receiver stop for it.
    """

    flows: tuple[Flow, ...]
    num_bytes: float
    blocking: bool


def _wires(
    schedule: Schedule,
    boundaries: Sequence[StageBoundary],
    hosts: Sequence[HostLinks],
    overlap: bool,
) -> _Wires:
    """Return the transfers of every boundary and micro-batch."""
    joined = {(b.source, b.destination) for b in boundaries}
    steps = [(s, s + 1) for s in range(schedule.num_stages - 1) if (s, s + 1) not in joined]
    every = [*boundaries, *(StageBoundary(source=s, destination=d) for s, d in steps)]
    wires = _Wires([], [], [], {}, {})
    for b, kept in zip(every, without_mirrored(every, hosts), strict=True):
        forward = _Message(kept.forward, _num_bytes(b.forward), not overlap)
        backward = _Message(kept.backward, _num_bytes(b.backward), not overlap)
        for m in range(schedule.num_microbatches):
            tasks = Task(FORWARD, b.source, m), Task(FORWARD, b.destination, m)
            _add(wires, schedule, forward, *tasks)
            if not schedule.forward_only:
                tasks = Task(BACKWARD, b.destination, m), Task(BACKWARD, b.source, m)
                _add(wires, schedule, backward, *tasks)
    return wires


def _num_bytes(flows: Sequence[Flow]) -> float:
    return sum(flow.num_bytes for flow in flows)


def _add(wires: _Wires, schedule: Schedule, message: _Message, maker: Task, taker: Task) -> None:
    index = len(wires.transfers)
    wires.transfers.append(
        Transfer(
            f"the result of {maker} for stage {taker.stage}",
            schedule.mesh_of_stage[maker.stage],
            schedule.mesh_of_stage[taker.stage],
            message.flows,
            message.blocking,
        )
    )
    wires.num_bytes.append(message.num_bytes)
    wires.ends.append((maker, taker))
    wires.out_of.setdefault(maker, []).append(index)
    wires.into.setdefault(taker, []).append(index)


class _Cost(NamedTuple):
    """One task's time and memory, temporary values apart.

    Attributes:
        duration_s: Seconds.
        taken_bytes: Bytes that are held from its start on.
        freed_bytes: Bytes that are freed when it ends.
    """

    duration_s: float
    taken_bytes: int
    freed_bytes: int


def _task_costs(stage: StageCost, schedule: Schedule) -> dict[str, _Cost]:
    """Return the cost of a task of each kind."""
    held, later = stage.held_bytes, stage.weight_held_bytes
    freed = held if schedule.forward_only else 0
    forward = _Cost(stage.forward_s, held, freed)
    if not schedule.splits_backward:
        return {FORWARD: forward, BACKWARD: _Cost(stage.backward_s, 0, held)}
    later = held if later is None else later
    gradient = _Cost(stage.activation_gradient_s or 0.0, 0, held - later)
    weight = _Cost(stage.weight_gradient_s or 0.0, 0, later)
    return {FORWARD: forward, BACKWARD: gradient, WEIGHT: weight}


def _actions(
    schedule: Schedule, stages: Sequence[StageCost], mesh: int, wires: _Wires
) -> list[Action]:
    """Return the stream of one mesh."""
    here = _stages_of(schedule, mesh)
    costs = {stage: _task_costs(stages[stage], schedule) for stage in here}
    actions: list[Action] = []
    for task in schedule.tasks[mesh]:
        cost, temporary = costs[task.stage][task.kind], stages[task.stage].temporary_bytes
        actions.append(
            Action(
                str(task),
                cost.duration_s,
                tuple(wires.into.get(task, ())),
                tuple(wires.out_of.get(task, ())),
                cost.taken_bytes + temporary,
                -temporary - cost.freed_bytes,
            )
        )
    if not schedule.forward_only:
        for stage in here:
            seconds, temporary = stages[stage].apply_s, stages[stage].temporary_bytes
            actions.append(
                Action(f"apply of stage {stage}", seconds, (), (), temporary, -temporary)
            )
    return actions


def _stages_of(schedule: Schedule, mesh: int) -> list[int]:
    return [stage for stage, at in enumerate(schedule.mesh_of_stage) if at == mesh]


def _events(schedule: Schedule, run: EngineRun) -> tuple[Event, ...]:
    """Return what the meshes did; what took no time once a step is left out."""
    events: list[Event] = []
    for mesh, tasks in enumerate(schedule.tasks):
        starts, ends = run.start_s[mesh], run.end_s[mesh]
        events += [
            Event(mesh, *task, start, end)
            for task, start, end in zip(tasks, starts, ends, strict=False)
        ]
        here, after = _stages_of(schedule, mesh), len(tasks)
        events += [
            Event(mesh, APPLY, stage, ONCE, start, end)
            for stage, start, end in zip(here, starts[after:], ends[after:], strict=False)
            if end > start
        ]
    return tuple(events)


def _transfer_events(wires: _Wires, run: EngineRun) -> tuple[TransferEvent, ...]:
    """Return what moved, in order of start."""
    events: list[TransferEvent] = []
    for index, (transfer, num_bytes, (maker, taker)) in enumerate(
        zip(wires.transfers, wires.num_bytes, wires.ends, strict=True)
    ):
        if transfer.flows:
            events.append(
                TransferEvent(
                    transfer.source,
                    transfer.destination,
                    maker.stage,
                    taker.stage,
                    maker.microbatch,
                    num_bytes,
                    run.transfer_start_s[index],
                    run.transfer_end_s[index],
                )
            )
    return tuple(sorted(events, key=lambda event: event.start_s))


def _check(
    schedule: Schedule,
    stages: Sequence[StageCost],
    boundaries: Sequence[StageBoundary],
    num_hosts: int,
) -> None:
    if len(stages) != schedule.num_stages:
        raise ProgramError(
            f"costs of {counted(len(stages), 'stage')} for schedule {schedule.name} of "
            f"{schedule.num_stages}"
        )
    for b in boundaries:
        if not 0 <= b.source < b.destination < schedule.num_stages:
            raise ProgramError(
                f"a boundary joins stages {b.source} and {b.destination}; it must join a lower to "
                f"a higher of {schedule.num_stages}"
            )
        for flow in (*b.forward, *b.backward):
            check_flow(f"the boundary of stages {b.source} and {b.destination}", flow, num_hosts)
    if schedule.splits_backward:
        for stage, cost in enumerate(stages):
            if cost.activation_gradient_s is None or cost.weight_gradient_s is None:
                raise ProgramError(
                    f"schedule {schedule.name} splits the backward, but stage {stage} has no "
                    "activation_gradient_s and weight_gradient_s"
                )
