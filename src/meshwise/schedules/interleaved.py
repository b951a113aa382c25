"""Interleaved 1F1B: each mesh runs v stages (chunks), n apart, so that bubbles are v times less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.errors import PlanError
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.schedule import BACKWARD, FORWARD, Schedule, Task
from meshwise.schedules.sizes import check_sizes
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved(PipelineSchedule):
    """Stage s runs on mesh `s mod n`; n micro-batches take one chunk each before the next chunk.

    Mesh i runs `2 (n - i - 1) + (v - 1) n + 1` chunks before its first backward.

    Source: docs/facts.md section 5 (Megatron-LM's interleaved schedule).
    """

    name: ClassVar[str] = "interleaved-1f1b"
    microbatches_text: ClassVar[str] = "a multiple of the meshes"
    depends_on_num_stages: ClassVar[bool] = True
    any_chunks: ClassVar[bool] = True

    chunks: int = 2

    def __post_init__(self) -> None:
        """Check the number of stages a mesh.

        Raises:
            ValueError: There is nothing to interleave.
        """
        if self.chunks < 2:
            raise ValueError(f"schedule {self.name!r} with {self.chunks} chunks a device")

    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return the table; the number of chunks is that of stages on a mesh.

        Raises:
            PlanError: The sizes are wrong; stages or micro-batches are no multiple of the meshes.
        """
        check_sizes(self.name, num_stages, num_microbatches, num_meshes)
        for what, value in (("stages", num_stages), ("micro-batches", num_microbatches)):
            if value % num_meshes:
                raise PlanError(
                    f"schedule {self.name}: {value} {what} are no multiple of "
                    f"{counted(num_meshes, 'mesh')}"
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
            warm_up = min(_warm_up(num_meshes - mesh, num_meshes, chunks), len(order))
            tasks = [Task(FORWARD, *at) for at in order[:warm_up]]
            for k, at in enumerate(back):
                tasks.append(Task(BACKWARD, *at))
                if warm_up + k < len(order):
                    tasks.append(Task(FORWARD, *order[warm_up + k]))
            tables.append(tuple(tasks))
        return self.schedule_of(tables, num_stages, num_microbatches)

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return the chunks of the warm-up, each of them a v-th of what the mesh runs."""
        return min(_warm_up(to_end, num_meshes, self.chunks) / self.chunks, num_microbatches)

    def allows(self, num_meshes: int, num_microbatches: int) -> bool:
        """Return whether the micro-batches make whole rounds."""
        return num_microbatches % num_meshes == 0


def _warm_up(to_end: int, num_meshes: int, chunks: int) -> int:
    """Return the chunks that a mesh runs before its first backward."""
    return 2 * (to_end - 1) + (chunks - 1) * num_meshes + 1
