"""What the schedules with one stage a mesh share: their checks, and the shape of 1F1B."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.errors import PlanError
from meshwise.schedules.schedule import BACKWARD, FORWARD, Schedule, Task


def check_sizes(name: str, num_stages: int, num_microbatches: int, num_meshes: int) -> None:
    """Check that there is something to do, and no mesh without a stage.

    Raises:
        PlanError: A number below 1, or more meshes than stages.
    """
    for what, value in (
        ("stages", num_stages),
        ("micro-batches", num_microbatches),
        ("meshes", num_meshes),
    ):
        if value < 1:
            raise PlanError(f"schedule {name}: {value} {what}; at least 1 is needed")
    if num_meshes > num_stages:
        raise PlanError(f"schedule {name}: {num_meshes} meshes for {num_stages} stages")


def check_one_stage_a_mesh(
    name: str, num_stages: int, num_microbatches: int, num_meshes: int
) -> None:
    """Check the sizes of a schedule that gives each mesh one stage.

    Raises:
        PlanError: The sizes are wrong.
    """
    check_sizes(name, num_stages, num_microbatches, num_meshes)
    if num_meshes != num_stages:
        raise PlanError(
            f"schedule {name} runs one stage a mesh, not {num_stages} stages on {num_meshes} "
            "meshes; give one mesh to each stage, or take schedule interleaved-1f1b"
        )


def alternating(name: str, num_microbatches: int, warm_up: Sequence[int]) -> Schedule:
    """First some forwards, then a backward and a forward in turn, then the backwards that are left.

    Args:
        name: Of the schedule.
        num_microbatches: Micro-batches of one step.
        warm_up: For each stage how many forwards it runs before its first backward.
    """
    tables: list[tuple[Task, ...]] = []
    for stage, first in enumerate(warm_up):
        count = min(first, num_microbatches)
        tasks = [Task(FORWARD, stage, m) for m in range(count)]
        for m in range(num_microbatches):
            tasks.append(Task(BACKWARD, stage, m))
            if count + m < num_microbatches:
                tasks.append(Task(FORWARD, stage, count + m))
        tables.append(tuple(tasks))
    return Schedule(
        name=name,
        num_stages=len(warm_up),
        num_microbatches=num_microbatches,
        num_meshes=len(warm_up),
        tasks=tuple(tables),
        splits_backward=False,
        mesh_of_stage=tuple(range(len(warm_up))),
    )
