"""The schedules with one stage a mesh: some forwards, then a backward and a forward in turn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from meshwise.errors import PlanError
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.schedule import BACKWARD, FORWARD, Schedule, Task
from meshwise.schedules.sizes import check_sizes
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternatingSchedule(PipelineSchedule):
    """A schedule that is told by its warm-up alone."""

    @abstractmethod
    def warm_up(self, to_end: int, num_microbatches: int) -> int:
        """Return how many forwards a stage runs before its first backward, where there are so many.

        Args:
            to_end: Stages from this one to the last, both counted.
            num_microbatches: Micro-batches of one step.
        """

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return the forwards of the warm-up: from there on one ends as another begins."""
        return min(self.warm_up(to_end, num_microbatches), num_microbatches)

    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return the table: the warm-up, a backward and a forward in turn, backwards that are left.

        Backwards go in the order of the forwards, so that gradients are summed in the same order
        under every schedule.

        Raises:
            PlanError: The sizes are wrong, or a mesh would have several stages.
        """
        check_sizes(self.name, num_stages, num_microbatches, num_meshes)
        if num_meshes != num_stages:
            raise PlanError(
                f"schedule {self.name} runs one stage a mesh, not {counted(num_stages, 'stage')} "
                f"on {counted(num_meshes, 'mesh')}; give one mesh to each stage, or take a "
                "schedule that interleaves stages"
            )
        tables: list[tuple[Task, ...]] = []
        for stage in range(num_stages):
            count = min(self.warm_up(num_stages - stage, num_microbatches), num_microbatches)
            tasks = [Task(FORWARD, stage, m) for m in range(count)]
            for m in range(num_microbatches):
                tasks.append(Task(BACKWARD, stage, m))
                if count + m < num_microbatches:
                    tasks.append(Task(FORWARD, stage, count + m))
            tables.append(tuple(tasks))
        return self.schedule_of(tables, num_stages, num_microbatches)
