"""What every pipeline schedule answers: its table, and the closed forms by which it is priced.

With t the time of a micro-batch on a stage, n equal stages and B micro-batches, a step takes
B t + (n - 1) f, where f = `fill_s` is the part of t that shows while the pipeline fills and drains.

Source: docs/facts.md section 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from meshwise.schedules.schedule import WEIGHT, Schedule, Task

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule(ABC):
    """A schedule for any number of stages and micro-batches.

    Class attributes:
        name: The schedule's name, which plans and messages bear.
        microbatches_text: The micro-batches that `allows` wants, in words; empty for any number.
        forward_only: Whether there is no backward pass; such a schedule cannot be asked for.
        depends_on_num_stages: Whether `in_flight` looks at the number of stages.
        any_chunks: Whether a mesh may run any number of stages above one; `chunks` is one of them.

    Attributes:
        chunks: Stages that each mesh runs.
        hides_transfers: Whether transfers between stages run beside computation.
        delays_weights: Whether gradients of weights run apart, as late as covers the transfers of
            gradients of activations.
    """

    name: ClassVar[str]
    microbatches_text: ClassVar[str] = ""
    forward_only: ClassVar[bool] = False
    depends_on_num_stages: ClassVar[bool] = False
    any_chunks: ClassVar[bool] = False

    chunks: int = 1
    hides_transfers: bool = False
    delays_weights: bool = False

    def __post_init__(self) -> None:
        """Check the number of stages a mesh.

        Raises:
            ValueError: A mesh has no stage, or several where the schedule has one.
        """
        if self.chunks != 1:
            raise ValueError(f"schedule {self.name!r} with {self.chunks} chunks a device")

    @abstractmethod
    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return who runs what in which order, weights not delayed.

        Args:
            num_stages: Stages of the pipeline, those of all meshes together.
            num_microbatches: Micro-batches of one step.
            num_meshes: Meshes; each has equally many stages.

        Raises:
            PlanError: The schedule does not allow these sizes.
        """

    @abstractmethod
    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return the most micro-batches whose activations a stage, or a mesh, holds at once.

        Args:
            to_end: Meshes from this one to the last, both counted: n - i.
            num_meshes: Meshes of the pipeline: n.
            num_microbatches: Micro-batches of one step: B.
        """

    def mesh_of_stage(self, num_stages: int, num_meshes: int) -> tuple[int, ...]:
        """Return for each stage the mesh on which it lies: the meshes in turns.

        Args:
            num_stages: Stages of the pipeline.
            num_meshes: Meshes; each has equally many stages.
        """
        return tuple(stage % num_meshes for stage in range(num_stages))

    def fill_s(self, microbatch_s: FloatArray) -> FloatArray:
        """Return the part of a micro-batch's time that shows while the pipeline fills and drains.

        Args:
            microbatch_s: Seconds of a micro-batch on each stage, forward and backward; any shape.
        """
        return microbatch_s / self.chunks

    def allows(self, num_meshes: int, num_microbatches: int) -> bool:
        """Return whether a pipeline of these sizes can run.

        Args:
            num_meshes: Meshes of the pipeline.
            num_microbatches: Micro-batches of one step.
        """
        return True

    def schedule_of(
        self, tasks: Sequence[tuple[Task, ...]], num_stages: int, num_microbatches: int
    ) -> Schedule:
        """Return the table of given tasks.

        Args:
            tasks: For each mesh its tasks, in order.
            num_stages: Stages of the pipeline.
            num_microbatches: Micro-batches of one step.
        """
        return Schedule(
            name=self.name,
            num_stages=num_stages,
            num_microbatches=num_microbatches,
            num_meshes=len(tasks),
            tasks=tuple(tasks),
            splits_backward=any(task.kind == WEIGHT for row in tasks for task in row),
            mesh_of_stage=self.mesh_of_stage(num_stages, len(tasks)),
            forward_only=self.forward_only,
        )

    @property
    def table_name(self) -> str:
        """The name of the table in `schedules.registry`."""
        return self.name

    @property
    def choice(self) -> str:
        """The name by which a user asks for it."""
        return choice_name(self.name, delays_weights=self.delays_weights)

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights run apart from those of activations."""
        return self.delays_weights


def choice_name(name: str, *, delays_weights: bool) -> str:
    """Return the name by which a user asks for a schedule.

    Args:
        name: The name that plans bear.
        delays_weights: Whether gradients of weights are delayed.
    """
    return f"{name}-delayed" if delays_weights else name
