"""Inference: forwards alone."""

from __future__ import annotations

from meshwise.schedules.one_stage_a_mesh import check_sizes
from meshwise.schedules.schedule import FORWARD, Schedule, Task

NAME = "inference"


def inference(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Forwards of all micro-batches; stage s runs on mesh `s mod num_meshes`.

    With several stages a mesh, a micro-batch goes through all stages of a round of `num_meshes`
    micro-batches before the next round begins, as in interleaved 1F1B.

    Raises:
        PlanError: The sizes are wrong.
    """
    check_sizes(NAME, num_stages, num_microbatches, num_meshes)
    tables = tuple(
        tuple(
            Task(FORWARD, stage, m)
            for first in range(0, num_microbatches, num_meshes)
            for stage in range(mesh, num_stages, num_meshes)
            for m in range(first, min(first + num_meshes, num_microbatches))
        )
        for mesh in range(num_meshes)
    )
    return Schedule(
        name=NAME,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_meshes=num_meshes,
        tasks=tables,
        splits_backward=False,
        mesh_of_stage=tuple(stage % num_meshes for stage in range(num_stages)),
        forward_only=True,
    )
