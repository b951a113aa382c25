"""How many micro-batches each stage of a schedule holds at most."""

from __future__ import annotations

from collections.abc import Iterable

from meshwise.schedules.schedule import BACKWARD, FORWARD, Kind, Schedule, Task


def in_flight(schedule: Schedule, until: Kind = BACKWARD) -> tuple[int, ...]:
    """Return for each stage the most micro-batches between the start of `F` and the end of `until`.

    All tasks of a stage are on one mesh, so the order of its list decides, whatever they cost.

    Args:
        schedule: A schedule.
        until: `B`; or `W`, where the backward is split.
    """
    by_stage: list[list[Task]] = [[] for _ in range(schedule.num_stages)]
    for tasks in schedule.tasks:
        for task in tasks:
            by_stage[task.stage].append(task)
    return tuple(_most(tasks, until) for tasks in by_stage)


def _most(tasks: Iterable[Task], until: Kind) -> int:
    now = most = 0
    for task in tasks:
        if task.kind == FORWARD:
            now += 1
        most = max(most, now)
        if task.kind == until:
            now -= 1
    return most
