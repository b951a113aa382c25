"""MaxText's pipeline: all forwards, round after round over the stages, then all backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.errors import PlanError
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.schedule import BACKWARD, FORWARD, Schedule, Task
from meshwise.schedules.sizes import check_sizes
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Circular(PipelineSchedule):
    """Each of n meshes has v stages; all micro-batches pass one before the mesh begins the next.

    Stage k lies on mesh k mod n.  The backward pass is the forward pass in reverse, so all
    micro-batches are in flight.

    Source: `src/maxtext/configs/base.yml` of maxtext 0.2.5: its bubble is (n - 1) / (v B + n - 1).
    """

    name: ClassVar[str] = "circular"

    def __post_init__(self) -> None:
        """Check the number of stages a mesh.

        Raises:
            ValueError: a mesh has no stage.
        """
        if self.chunks < 1:
            raise ValueError(f"schedule {self.name!r} with {self.chunks} chunks a device")

    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return the table.

        Raises:
            PlanError: the sizes are wrong, or micro-batches are no multiple of the meshes.
        """
        check_sizes(self.name, num_stages, num_microbatches, num_meshes)
        if num_stages % num_meshes or num_microbatches % num_meshes:
            raise PlanError(
                f"schedule {self.name}: {counted(num_stages, 'stage')} and "
                f"{counted(num_microbatches, 'micro-batch')} "
                f"are no multiples of {num_meshes} meshes"
            )
        tasks: list[tuple[Task, ...]] = []
        for mesh in range(num_meshes):
            order = [
                (stage, m)
                for stage in range(mesh, num_stages, num_meshes)
                for m in range(num_microbatches)
            ]
            ahead = [Task(FORWARD, *at) for at in order]
            tasks.append((*ahead, *(Task(BACKWARD, *at) for at in reversed(order))))
        return Schedule(
            name=self.name,
            num_stages=num_stages,
            num_microbatches=num_microbatches,
            num_meshes=num_meshes,
            tasks=tuple(tasks),
            splits_backward=False,
            mesh_of_stage=tuple(stage % num_meshes for stage in range(num_stages)),
        )

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return all micro-batches."""
        return num_microbatches

    def allows(self, num_meshes: int, num_microbatches: int) -> bool:
        """Return whether the micro-batches make whole rounds."""
        return num_microbatches % num_meshes == 0
