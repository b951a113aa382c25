"""Turns a schedule and the costs of its stages into the arrays that the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Kind, Schedule, Task
from meshwise.schedules.verify import verify_schedule
from meshwise.simulate.kernels.events import Messages
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.mirrored_hosts import without_mirrored
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.streams import Streams, Transfers, messages_of

_KINDS: tuple[Kind, ...] = (FORWARD, BACKWARD, WEIGHT)


class Wires(NamedTuple):
    """The transfers of a step, and the tasks at their ends.

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


# A task has a number: micro-batches of one kind and stage follow one another.


def _number(schedule: Schedule, kind: str, stage: int) -> int:
    """Return the number of a stage's first task of a kind."""
    return (_KINDS.index(kind) * schedule.num_stages + stage) * schedule.num_microbatches


def task_of(schedule: Schedule, number: int) -> Task:
    """Return the task of a number, as `Wires` has it."""
    place, microbatch = divmod(number, schedule.num_microbatches)
    kind, stage = divmod(place, schedule.num_stages)
    return Task(_KINDS[kind], stage, microbatch)


def wires_of(
    schedule: Schedule,
    boundaries: Sequence[StageBoundary],
    hosts: Sequence[HostLinks],
    *,
    stops_meshes: bool,
) -> Wires:
    """Return the transfers of every boundary and micro-batch.

    Args:
        schedule: Who runs what in which order.
        boundaries: The values that pass between stages.
        hosts: Links of the hosts that the flows name.
        stops_meshes: Whether sender and receiver stop for each transfer.
    """
    joined = {(b.source, b.destination) for b in boundaries}
    steps = [(s, s + 1) for s in range(schedule.num_stages - 1) if (s, s + 1) not in joined]
    every = [*boundaries, *(StageBoundary(source=s, destination=d) for s, d in steps)]
    kinds: list[tuple[tuple[Flow, ...], bool]] = []
    num_bytes: list[float] = []
    ends: list[tuple[int, int, int, int]] = []
    for b, kept in zip(every, without_mirrored(every, hosts), strict=True):
        ways = [(FORWARD, b.source, b.destination, b.forward, kept.forward)]
        if not schedule.forward_only:
            ways.append((BACKWARD, b.destination, b.source, b.backward, kept.backward))
        for kind, source, destination, flows, simulated in ways:
            meshes = schedule.mesh_of_stage[source], schedule.mesh_of_stage[destination]
            tasks = _number(schedule, kind, source), _number(schedule, kind, destination)
            ends.append((*meshes, *tasks))
            kinds.append((simulated, stops_meshes))
            num_bytes.append(sum(flow.num_bytes for flow in flows))
    count = schedule.num_microbatches
    source, destination, maker, taker = (
        np.repeat(column, count) for column in np.array(ends, np.int64).reshape(-1, 4).T
    )
    microbatch = np.tile(np.arange(count), len(ends))
    return Wires(
        Transfers(source, destination, np.repeat(np.arange(len(ends)), count)),
        messages_of(kinds),
        np.array(num_bytes, np.float64),
        maker + microbatch,
        taker + microbatch,
    )


def streams_of(schedule: Schedule, stages: Sequence[StageCost], wires: Wires) -> Streams:
    """Return what every mesh does.

    Args:
        schedule: Who runs what in which order.
        stages: The costs of each stage.
        wires: The transfers.

    Raises:
        ProgramError: The schedule lacks a task, or has one twice or on a wrong mesh.
    """
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
        updates = () if schedule.forward_only else schedule.stages_on(mesh)
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
