"""Backward weight delaying: the gradient of the activations is sent first, weights come later.

A *delay* counts half steps.  0: `W` follows its own `B`.  1: it stands directly before the next
`B` of its mesh, so that forwards in between go first.  2: directly after that `B`; and so on.

Source: docs/facts.md section 3 (AlpaComm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwise.errors import PlanError
from meshwise.schedules.schedule import BACKWARD, WEIGHT, Schedule, Task
from meshwise.units import counted


def with_delays(schedule: Schedule, delays: Sequence[int]) -> Schedule:
    """Return the schedule with its backward split, the gradients of weights delayed.

    Args:
        schedule: A schedule that does not split the backward.
        delays: For each mesh its delay in half steps.

    Raises:
        PlanError: There is no whole backward to split, or not one delay of at least 0 a mesh.
    """
    if schedule.splits_backward or schedule.forward_only:
        raise PlanError(f"schedule {schedule.name} has no whole backward that could be split")
    if len(delays) != schedule.num_meshes or any(delay < 0 for delay in delays):
        raise PlanError(
            f"schedule {schedule.name}: one delay of at least 0 is needed for each of "
            f"{counted(schedule.num_meshes, 'mesh')}, not {str(list(delays))[:60]}"
        )
    return replace(
        schedule,
        tasks=tuple(map(_delayed, schedule.tasks, delays)),
        splits_backward=True,
    )


def spread_delays(k: int, num_meshes: int) -> list[int]:
    """Return delays that grow from 0 on the first mesh to k half steps on the last.

    Args:
        k: The delay of the last mesh, in half steps.
        num_meshes: Meshes of the pipeline.
    """
    steps = max(num_meshes - 1, 1)
    return [-(-k * i // steps) for i in range(num_meshes)]


def _delayed(tasks: tuple[Task, ...], delay: int) -> tuple[Task, ...]:
    """Return one mesh's list with its `W`s."""
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
