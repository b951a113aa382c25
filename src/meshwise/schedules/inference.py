"""Inference: forwards alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.schedule import FORWARD, Schedule, Task
from meshwise.schedules.sizes import check_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference(PipelineSchedule):
    """Forwards of all micro-batches; stage s runs on mesh `s mod n`.

    With several stages a mesh, a micro-batch goes through all stages of a round of n
    micro-batches before the next round begins, as in interleaved 1F1B.
    """

    name: ClassVar[str] = "inference"
    forward_only: ClassVar[bool] = True

    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return the table.

        Raises:
            PlanError: The sizes are wrong.
        """
        check_sizes(self.name, num_stages, num_microbatches, num_meshes)
        tables = tuple(
            tuple(
                Task(FORWARD, stage, m)
                for first in range(0, num_microbatches, num_meshes)
                for stage in range(mesh, num_stages, num_meshes)
                for m in range(first, min(first + num_meshes, num_microbatches))
            )
            for mesh in range(num_meshes)
        )
        return self.schedule_of(tables, num_stages, num_microbatches)

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return 1: what a forward needs ends with it."""
        return 1


INFERENCE = Inference()
