"""When each task of a schedule starts and ends, with a time for each kind of task."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.schedules.clocks import Span
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Schedule, Task, dependencies
from meshwise.schedules.verify import TaskPlace, running_order


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCosts:
    """Clocks of one task of each kind; the unit is the caller's.

    Attributes:
        forward: Clocks of `F`.
        backward: Clocks of `B`.
        weight: Clocks of `W`; without effect where the schedule does not split the backward.
        transfer: Clocks from the end of a task until a task on another mesh can use its result; the
            meshes go on meanwhile.
    """

    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    transfer: float = 0.0


def clock_times(schedule: Schedule, costs: TaskCosts | None = None) -> tuple[tuple[Span, ...], ...]:
    """Return for each mesh the spans of its tasks, aligned with `schedule.tasks`.

    Each mesh runs its tasks in order, each as soon as what it depends on has arrived.

    Args:
        schedule: A schedule.
        costs: Clocks for each kind of task; one for each by default, and none for transfers.

    Raises:
        ProgramError: The order has a deadlock.
    """
    return times_in_order(schedule, running_order(schedule), costs or TaskCosts())


def times_in_order(
    schedule: Schedule, order: tuple[TaskPlace, ...], costs: TaskCosts
) -> tuple[tuple[Span, ...], ...]:
    """Return what `clock_times` returns, where an order in which the tasks can run is known.

    Args:
        schedule: A schedule.
        order: The order.
        costs: Clocks for each kind of task.
    """
    clocks = {FORWARD: costs.forward, BACKWARD: costs.backward, WEIGHT: costs.weight}
    end_of: dict[Task, float] = {}
    spans: list[list[Span]] = [[] for _ in schedule.tasks]
    for mesh, position in order:
        task = schedule.tasks[mesh][position]
        start = spans[mesh][-1].end if position else 0.0
        for other in dependencies(task, schedule):
            away = schedule.mesh_of_stage[other.stage] != mesh
            start = max(start, end_of[other] + (costs.transfer if away else 0.0))
        end_of[task] = start + clocks[task.kind]
        spans[mesh].append(Span(start, end_of[task]))
    return tuple(tuple(row) for row in spans)


def num_clocks(spans: tuple[tuple[Span, ...], ...]) -> float:
    """Return the clocks until the last task of any mesh ends.

    Args:
        spans: For each mesh the spans of its tasks.
    """
    return max((row[-1].end for row in spans if row), default=0.0)
