"""Schedules in the shape of a V: each mesh has a stage on the way down and one on the way up.

Of 2 n stages on n meshes, stages i and 2 n - 1 - i lie on mesh i.  So the first mesh has the first
and the last stage, and the two stages of the last mesh follow each other: nothing is sent between
them.  The gradients of weights run apart, and fill time that would be idle.

Source: docs/facts.md section 5 (Qi et al., "Pipeline parallelism with controllable memory").
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from meshwise.errors import PlanError
from meshwise.schedules.pipeline_schedule import FloatArray, PipelineSchedule
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Kind, Schedule, Task
from meshwise.schedules.sizes import check_sizes
from meshwise.units import counted

# The two stages of a mesh.
DOWN, UP = 0, 1


class TaskList:
    """The tasks of one mesh while its list grows; each runs the next micro-batch of its kind."""

    def __init__(self, down: int, up: int) -> None:
        self.tasks: list[Task] = []
        self._stages = (down, up)
        self._done: Counter[tuple[Kind, int]] = Counter()
        self._late: list[int] = []

    def count(self, kind: Kind, side: int) -> int:
        """Return how many micro-batches a stage has run a kind of task for."""
        return self._done[kind, side]

    def forward(self, side: int) -> None:
        """Run a forward of a stage."""
        self._run(FORWARD, side)

    def backward(self, side: int) -> None:
        """Run the gradient of activations of a stage; the gradient of weights is left for later."""
        self._run(BACKWARD, side)
        self._late.append(side)

    def whole_backward(self, side: int) -> None:
        """Run both gradients of a stage."""
        self._run(BACKWARD, side)
        self._run(WEIGHT, side)

    def weights(self) -> None:
        """Run the oldest gradient of weights that was left."""
        self._run(WEIGHT, self._late.pop(0))

    def rest(self) -> None:
        """Run all gradients of weights that were left."""
        while self._late:
            self.weights()

    def _run(self, kind: Kind, side: int) -> None:
        self.tasks.append(Task(kind, self._stages[side], self._done[kind, side]))
        self._done[kind, side] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VShapedSchedule(PipelineSchedule):
    """A schedule in a V: `run_mesh` lists the tasks of each mesh; it needs enough micro-batches."""

    depends_on_num_stages: ClassVar[bool] = True

    chunks: int = 2

    def __post_init__(self) -> None:
        """Check the number of stages a mesh.

        Raises:
            ValueError: It is not 2.
        """
        if self.chunks != 2:
            raise ValueError(f"schedule {self.name!r} with {self.chunks} chunks a device")

    @abstractmethod
    def least_microbatches(self, num_meshes: int) -> int:
        """Return the least number of micro-batches."""

    @abstractmethod
    def run_mesh(self, tasks: TaskList, mesh: int, num_meshes: int, num_microbatches: int) -> None:
        """List the tasks of a mesh.

        Args:
            tasks: The list.
            mesh: The mesh, from 0.
            num_meshes: Meshes of the pipeline.
            num_microbatches: Micro-batches of a step, at least `least_microbatches`.
        """

    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return the table.

        Raises:
            PlanError: The sizes are wrong, a mesh would not have two stages, or micro-batches are
                too few.
        """
        check_sizes(self.name, num_stages, num_microbatches, num_meshes)
        if num_stages != 2 * num_meshes:
            raise PlanError(
                f"schedule {self.name} runs two stages a mesh, not {counted(num_stages, 'stage')} "
                f"on {counted(num_meshes, 'mesh')}; give two stages to each mesh, or take another "
                "schedule"
            )
        if not self.allows(num_meshes, num_microbatches):
            raise PlanError(
                f"schedule {self.name}: {counted(num_microbatches, 'micro-batch')} on "
                f"{counted(num_meshes, 'mesh')}; at least {self.least_microbatches(num_meshes)} "
                "are needed"
            )
        tables: list[tuple[Task, ...]] = []
        for mesh in range(num_meshes):
            found = TaskList(mesh, num_stages - 1 - mesh)
            self.run_mesh(found, mesh, num_meshes, num_microbatches)
            tables.append(tuple(found.tasks))
        return self.schedule_of(tables, num_stages, num_microbatches)

    def allows(self, num_meshes: int, num_microbatches: int) -> bool:
        """Return whether there are enough micro-batches."""
        return num_microbatches >= self.least_microbatches(num_meshes)

    def mesh_of_stage(self, num_stages: int, num_meshes: int) -> tuple[int, ...]:
        """Return the meshes, down and up again."""
        return tuple(min(k, num_stages - 1 - k) for k in range(num_stages))

    def fill_s(self, microbatch_s: FloatArray) -> FloatArray:
        """Return the forward of one stage: a sixth, if all passes of a mesh are equally long."""
        return microbatch_s / 6

    @property
    def splits_backward(self) -> bool:
        """Gradients of weights always run apart."""
        return True
