"""Interleaved 1F1B: each mesh runs v stages (chunks), n apart, so that bubbles are v times less."""

from __future__ import annotations

from meshwise.errors import PlanError
from meshwise.schedules.one_stage_a_mesh import check_sizes
from meshwise.schedules.schedule import BACKWARD, FORWARD, Schedule, Task

NAME = "interleaved-1f1b"


def interleaved(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Stage s runs on mesh `s mod n`; n micro-batches take one chunk each before the next chunk.

    Mesh i runs `2 (n - i - 1) + (v - 1) n + 1` chunks before its first backward.

    Raises:
        PlanError: The sizes are wrong; stages or micro-batches are no multiple of the meshes.

    Source: docs/facts.md section 5 (Megatron-LM's interleaved schedule).
    """
    check_sizes(NAME, num_stages, num_microbatches, num_meshes)
    for what, value in (("stages", num_stages), ("micro-batches", num_microbatches)):
        if value % num_meshes:
            raise PlanError(
                f"schedule {NAME}: {value} {what} are no multiple of {num_meshes} meshes"
            )
    chunks = num_stages // num_meshes
    tables: list[tuple[Task, ...]] = []
    for mesh in range(num_meshes):
        order = [
            (chunk * num_meshes + mesh, m)
            for first in range(0, num_microbatches, num_meshes)
            for chunk in range(chunks)
            for m in range(first, first + num_meshes)
        ]
        back = [(num_stages - num_meshes - stage + 2 * mesh, m) for stage, m in order]
        warm_up = min(2 * (num_meshes - mesh - 1) + (chunks - 1) * num_meshes + 1, len(order))
        tasks = [Task(FORWARD, *at) for at in order[:warm_up]]
        for k, at in enumerate(back):
            tasks.append(Task(BACKWARD, *at))
            if warm_up + k < len(order):
                tasks.append(Task(FORWARD, *order[warm_up + k]))
        tables.append(tuple(tasks))
    return Schedule(
        name=NAME,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_meshes=num_meshes,
        tasks=tuple(tables),
        splits_backward=False,
        mesh_of_stage=tuple(stage % num_meshes for stage in range(num_stages)),
    )
