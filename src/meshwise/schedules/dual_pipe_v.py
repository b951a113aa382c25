"""DualPipeV: DeepSeek's DualPipe folded into a V, forwards and backwards in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.v_shaped import DOWN, UP, TaskList, VShapedSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class DualPipeV(VShapedSchedule):
    """DeepSeek runs F and B as one task, and is idle for `(n - 1) (F&B + B - 3 W)` for m >= 2 n.

    There F&B is the time of a forward and a whole backward that run beside each other, B that of a
    whole backward, W that of its gradients of weights, each of one of the 2 n stages.  Here the two
    run one after the other, so that a result leaves sooner: a step is idle for `(n - 1) T_F` with
    passes of one length, and otherwise for no longer than DeepSeek's.  A transfer of one pass runs
    beside the other pass.  A mesh holds 2 n + 1 micro-batches of one stage each.

    Source: docs/facts.md section 5 (DeepSeek's DualPipeV).
    """

    name: ClassVar[str] = "dualpipe-v"
    microbatches_text: ClassVar[str] = "at least twice the meshes"

    hides_transfers: bool = True

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return half the forwards of both stages before the pairs begin, and the first of them."""
        return num_meshes + 0.5

    def least_microbatches(self, num_meshes: int) -> int:
        """Return one for each stage."""
        return 2 * num_meshes

    def run_mesh(self, tasks: TaskList, mesh: int, num_meshes: int, num_microbatches: int) -> None:
        """List forwards ahead, backwards that come up, pairs of both ways, then what is left."""
        before, after = mesh + 1, num_meshes - mesh - 1
        for _ in range(2 * after):
            tasks.forward(DOWN)
        for _ in range(before):
            tasks.forward(DOWN)
            tasks.forward(UP)
        for _ in range(after):
            tasks.backward(UP)
            tasks.weights()
            tasks.forward(UP)
        for _ in range(num_microbatches - 2 * num_meshes + before):
            tasks.forward(DOWN)
            tasks.whole_backward(UP)
            tasks.forward(UP)
            tasks.whole_backward(DOWN)
        for _ in range(after):
            tasks.whole_backward(UP)
            tasks.forward(UP)
            tasks.whole_backward(DOWN)
        # From the middle on gradients of weights wait for the end, to fill idle time there.
        for number in range(2 * before):
            side = DOWN if number % 2 else UP
            if number < before:
                tasks.whole_backward(side)
            else:
                tasks.backward(side)
        for _ in range(after):
            tasks.weights()
            tasks.backward(DOWN)
        tasks.rest()


DUAL_PIPE_V = DualPipeV()
