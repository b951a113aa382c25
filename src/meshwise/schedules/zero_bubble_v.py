"""ZB-V: two stages a mesh in a V, no idle time between tasks, the memory of 1F1B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.schedule import FORWARD
from meshwise.schedules.v_shaped import DOWN, UP, TaskList, VShapedSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBubbleV(VShapedSchedule):
    """With passes of one length no mesh waits from its first task to its last, for m >= 2 n - 1.

    Mesh i starts i forwards late, so a step is idle for `(n - 1) T_F`.  Where the gradient of
    activations takes longest it is idle for `(n - 1) max(T_B, 2 (T_B - T_W))`.  All are times of
    one of the 2 n stages.  A mesh holds at most 2 n micro-batches of one stage each, until their
    gradients of weights are done.  That is as much as n micro-batches of both stages, which is what
    stage 0 of 1F1B holds.

    Transfers run beside computation: gradients of weights leave time for them.

    Source: docs/facts.md section 5 (Qi et al., 2024).
    """

    name: ClassVar[str] = "zb-v"
    microbatches_text: ClassVar[str] = "at least twice the meshes, less one"

    hides_transfers: bool = True

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return half the forwards of both stages before the first backward."""
        return num_meshes

    def least_microbatches(self, num_meshes: int) -> int:
        """Return how many forwards the first mesh runs before its second stage begins."""
        return 2 * num_meshes - 1

    def run_mesh(self, tasks: TaskList, mesh: int, num_meshes: int, num_microbatches: int) -> None:
        """List forwards ahead, then all in turn, then what is left, gradients of weights last."""
        to_end = num_meshes - mesh
        for _ in range(2 * to_end - 1):
            tasks.forward(DOWN)
        for _ in range(mesh):
            tasks.forward(UP)
            tasks.forward(DOWN)
        for _ in range(to_end):
            tasks.forward(UP)
            tasks.whole_backward(UP)
        while tasks.count(FORWARD, UP) < num_microbatches:
            if tasks.count(FORWARD, DOWN) < num_microbatches:
                tasks.forward(DOWN)
            tasks.whole_backward(DOWN)
            tasks.forward(UP)
            tasks.whole_backward(UP)
        for _ in range(mesh):
            tasks.backward(DOWN)
            tasks.backward(UP)
        for _ in range(to_end):
            tasks.backward(DOWN)
            tasks.weights()
        tasks.rest()


ZERO_BUBBLE_V = ZeroBubbleV()
