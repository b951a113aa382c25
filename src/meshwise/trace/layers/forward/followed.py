"""A step without gradients in the stages of a pipeline: what is planned, and what is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout
from meshwise.plan.plan import Plan
from meshwise.trace.layers.forward.stages import ForwardStages
from meshwise.trace.layers.stacks.unstack import Unstacked
from meshwise.trace.step import OpenStep, TracedStep


class ArgumentHome(NamedTuple):
    """Where an argument lives.

    Attributes:
        stage: The number of the stage of the pipeline.
        layout: On the stage's mesh.
        name: Path of the argument that is followed.
    """

    stage: int
    layout: Layout
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedStages:
    """A step on the stages of another one.

    Attributes:
        ends: The user's step, with stacks of layers, and the one on single layers.
        cut: The latter in stages.
        homes: For each argument on single layers where it lives; None where it may be anywhere.
        steps: For each stage of `cut` its program; operands in the order of their names.
        orders: For each of these which input of its stage each operand is.
        meshes: For each stage of the pipeline its logical mesh and first device.
        plans: For each stage of `cut` the plan of its program.
        plan: Its stages are those of `cut`.
    """

    ends: Unstacked
    cut: ForwardStages
    homes: tuple[ArgumentHome | None, ...]
    steps: tuple[TracedStep, ...]
    orders: tuple[tuple[int, ...], ...]
    meshes: tuple[tuple[LogicalMesh, int], ...]
    plans: tuple[Plan, ...]
    plan: Plan

    @property
    def user(self) -> OpenStep:
        """The user's step."""
        return self.ends.original
