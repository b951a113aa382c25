"""The order in which one thread can start all tasks of a schedule."""

from __future__ import annotations

from collections.abc import Iterator

from meshwise.errors import PlanError
from meshwise.schedules.schedule import Schedule, Task, dependencies


def dispatch_order(schedule: Schedule) -> Iterator[Task]:
    """Yield all tasks, each after those that it needs; those of one mesh in their order.

    Args:
        schedule: A schedule.

    Raises:
        PlanError: the schedule waits for itself.
    """
    position = [0] * len(schedule.tasks)
    done: set[Task] = set()
    has_moved = True
    while has_moved:
        has_moved = False
        for mesh, tasks in enumerate(schedule.tasks):
            while position[mesh] < len(tasks) and done.issuperset(
                dependencies(tasks[position[mesh]], schedule)
            ):
                task = tasks[position[mesh]]
                yield task
                done.add(task)
                position[mesh] += 1
                has_moved = True
    waiting = [t[p] for t, p in zip(schedule.tasks, position, strict=True) if p < len(t)]
    if waiting:
        raise PlanError(f"the schedule {schedule.name} waits for itself: {waiting[0]}")
