"""From a schedule and the costs of its stages to the timeline of one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwise.errors import ProgramError
from meshwise.kernels.arrays import Floats, Ints
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Kind, Schedule, Task
from meshwise.schedules.verify import verify_schedule
from meshwise.simulate.engine import EngineRun, run_streams
from meshwise.simulate.kernels.events import NUM_FLOWS, Messages
from meshwise.simulate.links import Flow, HostLinks, check_flow
from meshwise.simulate.measure import exposed_s
from meshwise.simulate.mirrored_hosts import without_mirrored
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.streams import Streams, Transfers, messages_of
from meshwise.simulate.timeline import APPLY, ONCE, Event, Timeline, TransferEvent
from meshwise.units import counted

_KINDS: tuple[Kind, ...] = (FORWARD, BACKWARD, WEIGHT)


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
    wires: _Wires


class _Wires(NamedTuple):
    """All messages of a step.

    Attributes:
        transfers: For the engine.
        messages: Their kinds, without flows that mirror others.
        num_bytes: For each kind the bytes of all its flows.
        maker: For each transfer the number of the task that makes it.
        taker: For each transfer the number of the task that waits for it.
    """

    transfers: Transfers
    messages: Messages
    num_bytes: Floats
    maker: Ints
    taker: Ints


def _run(pipeline: PricedPipeline, schedule: Schedule) -> _Step:
    _check(pipeline, schedule)
    wires = _wires(pipeline, schedule)
    streams = _streams(pipeline.stages, schedule, wires)
    resident = np.zeros(schedule.num_meshes, np.int64)
    for mesh, stage in zip(schedule.mesh_of_stage, pipeline.stages, strict=True):
        resident[mesh] += stage.resident_bytes
    run = run_streams(streams, wires.transfers, wires.messages, pipeline.hosts, resident)
    stuck = list(run.stuck())
    if stuck:
        told = [_missed(schedule, wires, *each) for each in stuck]
        raise ProgramError("deadlock: " + "; ".join(told))
    return _Step(run, wires)


# A task has a number: micro-batches of one kind and stage follow one another.


def _number(schedule: Schedule, kind: str, stage: int) -> int:
    """Return the number of a stage's first task of a kind."""
    return (_KINDS.index(kind) * schedule.num_stages + stage) * schedule.num_microbatches


def _task(schedule: Schedule, number: int) -> Task:
    """Return the task of a number."""
    place, microbatch = divmod(number, schedule.num_microbatches)
    kind, stage = divmod(place, schedule.num_stages)
    return Task(_KINDS[kind], stage, microbatch)


def _wires(pipeline: PricedPipeline, schedule: Schedule) -> _Wires:
    """Return the transfers of every boundary and micro-batch."""
    boundaries = pipeline.boundaries
    joined = {(b.source, b.destination) for b in boundaries}
    steps = [(s, s + 1) for s in range(schedule.num_stages - 1) if (s, s + 1) not in joined]
    every = [*boundaries, *(StageBoundary(source=s, destination=d) for s, d in steps)]
    kinds: list[tuple[tuple[Flow, ...], bool]] = []
    num_bytes: list[float] = []
    ends: list[tuple[int, int, int, int]] = []
    for b, kept in zip(every, without_mirrored(every, pipeline.hosts), strict=True):
        ways = [(FORWARD, b.source, b.destination, b.forward, kept.forward)]
        if not schedule.forward_only:
            ways.append((BACKWARD, b.destination, b.source, b.backward, kept.backward))
        for kind, source, destination, flows, simulated in ways:
            meshes = schedule.mesh_of_stage[source], schedule.mesh_of_stage[destination]
            tasks = _number(schedule, kind, source), _number(schedule, kind, destination)
            ends.append((*meshes, *tasks))
            kinds.append((simulated, not pipeline.overlap))
            num_bytes.append(sum(flow.num_bytes for flow in flows))
    count = schedule.num_microbatches
    source, destination, maker, taker = (
        np.repeat(column, count) for column in np.array(ends, np.int64).reshape(-1, 4).T
    )
    microbatch = np.tile(np.arange(count), len(ends))
    return _Wires(
        Transfers(source, destination, np.repeat(np.arange(len(ends)), count)),
        messages_of(kinds),
        np.array(num_bytes, np.float64),
        maker + microbatch,
        taker + microbatch,
    )


def _streams(stages: Sequence[StageCost], schedule: Schedule, wires: _Wires) -> Streams:
    """Return what every mesh does."""
    num_stages, count = schedule.num_stages, schedule.num_microbatches
    first_number = {
        (kind, stage): _number(schedule, kind, stage)
        for kind in _KINDS
        for stage in range(num_stages)
    }
    # Costs of actions: those of tasks by kind and stage, then updates by stage.
    costs = [_costs(stage, schedule) for stage in stages]
    priced = [kinds[k] for k in range(len(_KINDS) + 1) for kinds in costs]
    numbers: list[Ints] = []
    priced_at: list[Ints] = []
    for mesh, tasks in enumerate(schedule.tasks):
        here = (first_number.get((k, s), -count) + m for k, s, m in tasks)
        own = np.fromiter(here, np.int64, len(tasks))
        updates = [] if schedule.forward_only else _stages_of(schedule, mesh)
        numbers.append(np.append(own, np.full(len(updates), -1)))
        priced_at.append(np.append(own // count, np.add(updates, len(_KINDS) * num_stages)))
    number, at = np.concatenate(numbers), np.concatenate(priced_at).astype(np.int64)
    if not _has_each_task_once(schedule, numbers):
        verify_schedule(schedule)
    action_of = np.full(len(_KINDS) * num_stages * count, -1, np.int64)
    action_of[number[number >= 0]] = np.flatnonzero(number >= 0)
    first_wait, waits = _by_action(action_of[wires.taker], len(number))
    first_make, makes = _by_action(action_of[wires.maker], len(number))
    return Streams(
        first=np.cumsum([0, *map(len, numbers)], dtype=np.int64),
        duration_s=np.array([cost.duration_s for cost in priced], np.float64)[at],
        start_bytes=np.array([cost.taken_bytes for cost in priced], np.int64)[at],
        end_bytes=np.array([-cost.freed_bytes for cost in priced], np.int64)[at],
        first_wait=first_wait,
        waits=waits,
        first_make=first_make,
        makes=makes,
    )


def _has_each_task_once(schedule: Schedule, numbers: Sequence[Ints]) -> bool:
    """Return whether the numbers of each mesh are those of its tasks, whatever their order."""
    count, mesh_of_stage = schedule.num_microbatches, np.array(schedule.mesh_of_stage)
    every = np.arange(len(schedule.kinds) * schedule.num_stages * count)
    mesh_of_task = mesh_of_stage[every // count % schedule.num_stages]
    return all(
        np.array_equal(np.sort(own[own >= 0]), every[mesh_of_task == mesh])
        for mesh, own in enumerate(numbers)
    )


def _by_action(actions: Ints, num_actions: int) -> tuple[Ints, Ints]:
    """Return transfers in the order of their actions, and for each action its first place there."""
    places = np.zeros(num_actions + 1, np.int64)
    np.cumsum(np.bincount(actions, minlength=num_actions), out=places[1:])
    return places, np.argsort(actions, kind="stable")


class _Cost(NamedTuple):
    """One action's time and memory, temporary values included.

    Attributes:
        duration_s: Seconds.
        taken_bytes: Bytes that are taken when it starts.
        freed_bytes: Bytes that are freed when it ends.
    """

    duration_s: float
    taken_bytes: int
    freed_bytes: int


def _costs(stage: StageCost, schedule: Schedule) -> list[_Cost]:
    """Return the costs of a stage's tasks of each kind, and of its update."""
    held, later, temporary = stage.held_bytes, stage.weight_held_bytes, stage.temporary_bytes
    later = held if later is None else later
    if schedule.splits_backward:
        backward_s, freed = stage.activation_gradient_s or 0.0, held - later
    else:
        backward_s, freed = stage.backward_s, held
    kept = 0 if schedule.forward_only else held
    return [
        _Cost(stage.forward_s, temporary + held, temporary + held - kept),
        _Cost(backward_s, temporary, temporary + freed),
        _Cost(stage.weight_gradient_s or 0.0, temporary, temporary + later),
        _Cost(stage.apply_s, temporary, temporary),
    ]


def _stages_of(schedule: Schedule, mesh: int) -> list[int]:
    return [stage for stage, at in enumerate(schedule.mesh_of_stage) if at == mesh]


def _missed(schedule: Schedule, wires: _Wires, mesh: int, transfer: int) -> str:
    """Return which task a mesh cannot start, and what it waits for."""
    maker = _task(schedule, int(wires.maker[transfer]))
    taker = _task(schedule, int(wires.taker[transfer]))
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
        stages, after = _stages_of(schedule, mesh), len(tasks)
        events += [
            Event(mesh, APPLY, stage, ONCE, start, end)
            for stage, start, end in zip(stages, starts[after:], ends[after:], strict=False)
            if end > start
        ]
    return tuple(events)


def _transfer_events(
    schedule: Schedule, wires: _Wires, run: EngineRun
) -> tuple[TransferEvent, ...]:
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
