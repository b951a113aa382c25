"""Zero-bubble H1: 1F1B whose gradients of weights fill the gaps at the end of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.delay import with_delays
from meshwise.schedules.one_f_one_b import OneFOneB
from meshwise.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBubbleH1(OneFOneB):
    """Bubble `(n - 1) (T_F + T_B - T_W)` for m >= n, at most n micro-batches held anywhere.

    Stage i runs the gradient of the weights i backwards late.  It has `n - i` micro-batches between
    forward and backward, so n until their weights are done: no more than stage 0 of 1F1B.
    Transfers run beside computation, as in 1F1B with delayed gradients of weights.

    Source: docs/facts.md section 5 (Qi et al., "Zero bubble pipeline parallelism", ICLR 2024).
    """

    name: ClassVar[str] = "zero-bubble-h1"

    hides_transfers: bool = True

    def table(self, num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
        """Return the table of 1F1B with gradients of weights apart.

        Raises:
            PlanError: The sizes are wrong, or a mesh would have several stages.
        """
        plain = OneFOneB.table(self, num_stages, num_microbatches, num_meshes)
        return with_delays(plain, [2 * stage for stage in range(num_stages)])

    @property
    def splits_backward(self) -> bool:
        """Gradients of weights always run apart."""
        return True


ZERO_BUBBLE = ZeroBubbleH1()
