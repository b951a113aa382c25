"""Whether a table is a schedule: every task once, on its mesh, in an order that can run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from meshwise.errors import ProgramError
from meshwise.schedules.schedule import Kind, Schedule, Task, dependencies
from meshwise.units import counted

# Where a task stands in a table: mesh, position.
TaskPlace = tuple[int, int]


def verify_schedule(schedule: Schedule) -> None:
    """Check a schedule, a user's own table above all.

    Args:
        schedule: The table.

    Every stage has a mesh and every mesh its list; each task stands there once, on the mesh of
    its stage; and if each mesh runs its list in order, each task after those that it depends on,
    all of them run.

    Raises:
        ProgramError: It breaks one of these rules; the text names the task.
    """
    _check_counts(schedule)
    _check_each_task_once(schedule)
    running_order(schedule)


def _check_counts(schedule: Schedule) -> None:
    name = schedule.name
    if schedule.forward_only and schedule.splits_backward:
        raise ProgramError(f"schedule {name} has no backward, so it cannot split it")
    if len(schedule.tasks) != schedule.num_meshes:
        raise ProgramError(
            f"schedule {name} has lists for {counted(len(schedule.tasks), 'mesh')}, not for "
            f"{schedule.num_meshes}"
        )
    if len(schedule.mesh_of_stage) != schedule.num_stages:
        raise ProgramError(
            f"schedule {name} names the meshes of {counted(len(schedule.mesh_of_stage), 'stage')}, "
            f"not of {schedule.num_stages}"
        )
    for stage, mesh in enumerate(schedule.mesh_of_stage):
        if not 0 <= mesh < schedule.num_meshes:
            raise ProgramError(
                f"schedule {name} puts stage {stage} on mesh {mesh}; meshes are 0 to "
                f"{schedule.num_meshes - 1}"
            )


def _all_tasks(schedule: Schedule) -> Iterator[Task]:
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            for kind in schedule.kinds:
                yield Task(kind, stage, microbatch)


def _check_each_task_once(schedule: Schedule) -> None:
    name = schedule.name
    missing = dict.fromkeys(_all_tasks(schedule))
    seen: dict[Task, int] = {}
    for mesh, tasks in enumerate(schedule.tasks):
        for task in tasks:
            if task in seen:
                raise ProgramError(
                    f"schedule {name} runs {task} twice, on mesh {seen[task]} and on mesh {mesh}"
                )
            if task not in missing:
                raise ProgramError(
                    f"schedule {name} runs {task} on mesh {mesh}, which is no task of "
                    f"{counted(schedule.num_stages, 'stage')} and "
                    f"{counted(schedule.num_microbatches, 'micro-batch')} "
                    f"with kinds {', '.join(schedule.kinds)}"
                )
            if schedule.mesh_of_stage[task.stage] != mesh:
                raise ProgramError(
                    f"schedule {name} runs {task} on mesh {mesh}, but stage {task.stage} is on "
                    f"mesh {schedule.mesh_of_stage[task.stage]}"
                )
            seen[task] = mesh
            del missing[task]
    if missing:
        first = next(iter(missing))
        more = f" nor {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ProgramError(f"schedule {name} never runs {first}{more}")


def running_order(schedule: Schedule) -> tuple[TaskPlace, ...]:
    """Return an order of all tasks in which each stands after those that it depends on.

    Args:
        schedule: The table.

    Raises:
        ProgramError: There is none; the text says which task waits for which.
    """
    ended: defaultdict[tuple[Kind, int], set[int]] = defaultdict(set)
    # A task depends only on tasks of its own micro-batch: those of micro-batch 0 say which.
    before = {
        (kind, stage): [ended[other[:2]] for other in dependencies(Task(kind, stage, 0), schedule)]
        for kind, stage in {task[:2] for tasks in schedule.tasks for task in tasks}
    }
    order: list[TaskPlace] = []
    next_of = [0] * len(schedule.tasks)
    progress = True
    while progress:
        progress = False
        for mesh, tasks in enumerate(schedule.tasks):
            start = position = next_of[mesh]
            while position < len(tasks):
                kind, stage, microbatch = tasks[position]
                if any(microbatch not in others for others in before[kind, stage]):
                    break
                ended[kind, stage].add(microbatch)
                position += 1
            if position > start:
                order += [(mesh, at) for at in range(start, position)]
                next_of[mesh], progress = position, True
    if len(order) < sum(map(len, schedule.tasks)):
        raise ProgramError(
            f"schedule {schedule.name} cannot run: {_waits(schedule, next_of, ended)}"
        )
    return tuple(order)


def _waits(
    schedule: Schedule, next_of: list[int], ended: Mapping[tuple[Kind, int], set[int]]
) -> str:
    """Return which task each mesh that is stuck waits for."""
    lines: list[str] = []
    for mesh, tasks in enumerate(schedule.tasks):
        if next_of[mesh] == len(tasks):
            continue
        task = tasks[next_of[mesh]]
        needed = dependencies(task, schedule)
        other = next(x for x in needed if x.microbatch not in ended[x.kind, x.stage])
        home = schedule.mesh_of_stage[other.stage]
        where = "later on the same mesh" if home == mesh else f"on mesh {home}"
        lines.append(f"on mesh {mesh} {task} waits for {other} {where}")
    return "; ".join(lines)
