"""When each task of a schedule starts and ends, if every task takes as long."""

from __future__ import annotations

from typing import NamedTuple

from meshwise.schedules.schedule import Schedule, Task, dependencies
from meshwise.schedules.verify import running_order


class Span(NamedTuple):
    """The time in which a task runs, in clocks."""

    start: float
    end: float


def clock_times(schedule: Schedule) -> tuple[tuple[Span, ...], ...]:
    """Return for each mesh the spans of its tasks, aligned with `schedule.tasks`.

    Each mesh runs its tasks in order, each as soon as what it depends on is done.

    Args:
        schedule: A schedule.

    Raises:
        ProgramError: The order has a deadlock.
    """
    end_of: dict[Task, float] = {}
    spans: list[list[Span]] = [[] for _ in schedule.tasks]
    for mesh, position in running_order(schedule):
        task = schedule.tasks[mesh][position]
        start = spans[mesh][-1].end if position else 0.0
        start = max((start, *(end_of[other] for other in dependencies(task, schedule))))
        end_of[task] = start + 1.0
        spans[mesh].append(Span(start, end_of[task]))
    return tuple(tuple(row) for row in spans)
