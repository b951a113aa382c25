"""Backward weight delaying: the gradient of the activations is sent first, weights come later.

A *delay* counts half steps.  0: `W` follows its own `B`.  1: it stands directly before the next
`B` of its mesh, so that forwards in between go first.  2: directly after that `B`; and so on.

Source: docs/facts.md section 3 (AlpaComm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwise.errors import PlanError
from meshwise.schedules.clocks import TaskCosts, num_clocks, times_in_order
from meshwise.schedules.schedule import BACKWARD, WEIGHT, Schedule, Task
from meshwise.schedules.verify import TaskPlace, running_order

# Differences of clocks below this share are rounding.
_SAME = 1e-9


def with_delays(schedule: Schedule, delays: Sequence[int], name: str | None = None) -> Schedule:
    """The schedule with its backward split, the gradients of weights delayed.

    Args:
        schedule: A schedule that does not split the backward.
        delays: For each mesh its delay in half steps.
        name: Of the result; that of `schedule` by default.

    Raises:
        PlanError: There is no whole backward to split, or not one delay of at least 0 a mesh.
    """
    if schedule.splits_backward or schedule.forward_only:
        raise PlanError(f"schedule {schedule.name} has no whole backward that could be split")
    if len(delays) != schedule.num_meshes or any(delay < 0 for delay in delays):
        raise PlanError(
            f"schedule {schedule.name}: one delay of at least 0 is needed for each of "
            f"{schedule.num_meshes} meshes, not {list(delays)}"
        )
    return replace(
        schedule,
        name=schedule.name if name is None else name,
        tasks=tuple(map(_delayed, schedule.tasks, delays)),
        splits_backward=True,
    )


def spread_delays(k: int, num_meshes: int) -> list[int]:
    """Delays that grow from 0 on the first mesh to k half steps on the last."""
    steps = max(num_meshes - 1, 1)
    return [-(-k * i // steps) for i in range(num_meshes)]


def _delayed(tasks: tuple[Task, ...], delay: int) -> tuple[Task, ...]:
    """One mesh's list with its `W`s."""
    weights = [Task(WEIGHT, t.stage, t.microbatch) for t in tasks if t.kind == BACKWARD]
    placed: list[Task] = []
    seen = done = 0
    for task in tasks:
        if task.kind != BACKWARD:
            placed.append(task)
            continue
        before, after = seen, seen + 1
        # Odd delays are due directly before a backward, even ones directly after it.
        due = max((before if delay % 2 else after) - delay // 2, done)
        late = weights[done:due]
        placed += [*late, task] if delay % 2 else [task, *late]
        seen, done = after, due
    return tuple(placed + weights[done:])


def delay_weights(schedule: Schedule, costs: TaskCosts) -> Schedule:
    """Split the backward and delay gradients of weights as little as covers the transfers.

    A backward goes down the pipeline from the last mesh, so what a mesh delays grows with the
    meshes before it, as in zero-bubble H1: mesh i delays `k i / (n - 1)` half steps.  The result
    has the least even k with which the step takes no longer than without transfers and delays; if
    none does, the least with which the step is shortest.  Less is better: what waits for its `W`
    is memory.

    Args:
        schedule: A schedule that does not split the backward.
        costs: Clocks for each kind of task and for a transfer between meshes.

    Raises:
        PlanError: There is no whole backward to split.
        ProgramError: The order has a deadlock.

    Source: docs/facts.md section 3.
    """
    order = running_order(schedule)
    steps = max(schedule.num_meshes - 1, 1)

    def delayed(k: int) -> Schedule:
        return with_delays(schedule, spread_delays(k, schedule.num_meshes))

    def clocks(split: Schedule, costs: TaskCosts) -> float:
        return num_clocks(times_in_order(split, _split_order(split, schedule, order), costs))

    best = delayed(0)
    enough = clocks(best, replace(costs, transfer=0.0)) * (1 + _SAME)
    least = clocks(best, costs)
    for k in range(2, 4 * steps + 1, 2):
        if least <= enough:
            break
        split = delayed(k)
        now = clocks(split, costs)
        if now < least * (1 - _SAME):
            best, least = split, now
    return best


def _split_order(
    split: Schedule, whole: Schedule, order: Sequence[TaskPlace]
) -> tuple[TaskPlace, ...]:
    """An order for the split schedule: that of the whole one, each `W` when its mesh gets there."""
    next_of = [0] * split.num_meshes
    places: list[TaskPlace] = []
    for mesh, position in order:
        task = whole.tasks[mesh][position]
        tasks = split.tasks[mesh]
        while tasks[next_of[mesh]] != task:
            places.append(TaskPlace(mesh, next_of[mesh]))
            next_of[mesh] += 1
        places.append(TaskPlace(mesh, next_of[mesh]))
        next_of[mesh] += 1
    for mesh, tasks in enumerate(split.tasks):
        places += [TaskPlace(mesh, position) for position in range(next_of[mesh], len(tasks))]
    return tuple(places)
