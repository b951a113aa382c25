"""A schedule of a pipeline: for each mesh the tasks that it runs, in order.  No times, no bytes.

A schedule that splits the backward has two tasks for it, so that the gradient of the activations
leaves before the gradients of the weights are computed.

Source: Alpa section 5 (static linear schedules); docs/facts.md sections 3 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "W"]
FORWARD: Kind = "F"
BACKWARD: Kind = "B"
WEIGHT: Kind = "W"


class Task(NamedTuple):
    """One stage's work on one micro-batch.

    Attributes:
        kind: `F` forward; `B` backward, or only the gradient of the activations where the schedule
            splits it; `W` the gradient of the weights.
        stage: From 0.
        microbatch: From 0.
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage}, micro-batch {self.microbatch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who runs what in which order.

    Attributes:
        name: The name, as in `schedules.registry`, or a user's own.
        num_stages: Stages of the pipeline.
        num_microbatches: Micro-batches of one step.
        num_meshes: Meshes; each runs one or several stages.
        tasks: For each mesh its tasks in the order in which it runs them.
        splits_backward: Whether the backward is two tasks, `B` and `W`.
        mesh_of_stage: For each stage its mesh.
        forward_only: Whether there is no backward at all.
    """

    name: str
    num_stages: int
    num_microbatches: int
    num_meshes: int
    tasks: tuple[tuple[Task, ...], ...]
    splits_backward: bool
    mesh_of_stage: tuple[int, ...]
    forward_only: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of tasks that every stage runs for every micro-batch."""
        if self.forward_only:
            return (FORWARD,)
        return (FORWARD, BACKWARD, WEIGHT) if self.splits_backward else (FORWARD, BACKWARD)

    def stages_on(self, mesh: int) -> tuple[int, ...]:
        """Return the numbers of the stages on a mesh, ascending."""
        return tuple(stage for stage, at in enumerate(self.mesh_of_stage) if at == mesh)


def dependencies(task: Task, schedule: Schedule) -> tuple[Task, ...]:
    """Return the tasks that must have ended before a task starts.

    A forward needs that of the stage before; a backward its own forward and the backward of the
    stage after; a gradient of weights its own backward.

    Args:
        task: A task of the schedule.
        schedule: The schedule.
    """
    kind, stage, microbatch = task
    if kind == FORWARD:
        return (Task(FORWARD, stage - 1, microbatch),) if stage else ()
    if kind == WEIGHT:
        return (Task(BACKWARD, stage, microbatch),)
    own = Task(FORWARD, stage, microbatch)
    if stage + 1 == schedule.num_stages:
        return (own,)
    return (own, Task(BACKWARD, stage + 1, microbatch))
