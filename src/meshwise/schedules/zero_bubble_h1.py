"""Zero-bubble H1: 1F1B whose gradients of weights fill the gaps at the end of the step."""

from __future__ import annotations

from meshwise.schedules.delay import with_delays
from meshwise.schedules.one_f_one_b import one_f_one_b
from meshwise.schedules.one_stage_a_mesh import check_one_stage_a_mesh
from meshwise.schedules.schedule import Schedule

NAME = "zero-bubble-h1"


def zero_bubble_h1(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Bubble `(n - 1) (T_F + T_B - T_W)` for m >= n, at most n micro-batches held anywhere.

    Stage i runs the gradient of the weights i backwards late.  It has `n - i` micro-batches between
    forward and backward, so n until their weights are done: no more than stage 0 of 1F1B.

    Raises:
        PlanError: The sizes are wrong.

    Source: docs/facts.md section 5 (Qi et al., "Zero bubble pipeline parallelism", ICLR 2024).
    """
    check_one_stage_a_mesh(NAME, num_stages, num_microbatches, num_meshes)
    plain = one_f_one_b(num_stages, num_microbatches, num_meshes)
    return with_delays(plain, [2 * stage for stage in range(num_stages)], name=NAME)
