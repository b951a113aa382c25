"""The sizes that no schedule can have."""

from __future__ import annotations

from meshwise.errors import PlanError
from meshwise.units import counted

# 64 stages of 16,384 micro-batches each; beyond it a number is a mistake, and tables would not end.
_MOST_TASKS = 2**20


def check_sizes(name: str, num_stages: int, num_microbatches: int, num_meshes: int) -> None:
    """Check that there is something to do, and no mesh without a stage.

    Args:
        name: The schedule's name, for the message.
        num_stages: Stages of the pipeline.
        num_microbatches: Micro-batches of one step.
        num_meshes: Meshes.

    Raises:
        PlanError: A number is below 1, there are more meshes than stages, or more tasks than a
            step can have.
    """
    for what, value in (
        ("stages", num_stages),
        ("micro-batches", num_microbatches),
        ("meshes", num_meshes),
    ):
        if value < 1:
            raise PlanError(f"schedule {name}: {value} {what}; at least 1 is needed")
    if num_meshes > num_stages:
        raise PlanError(
            f"schedule {name}: {counted(num_meshes, 'mesh')} for {counted(num_stages, 'stage')}"
        )
    if num_stages * num_microbatches > _MOST_TASKS:
        raise PlanError(
            f"schedule {name}: {counted(num_microbatches, 'micro-batch')} of "
            f"{counted(num_stages, 'stage')}; at most {_MOST_TASKS} tasks can be planned for, "
            "stages times micro-batches; take fewer micro-batches"
        )
