"""1F1B: a stage runs no more forwards ahead than it takes for the first backward to come back."""

from __future__ import annotations

from meshwise.schedules.one_stage_a_mesh import alternating, check_one_stage_a_mesh
from meshwise.schedules.schedule import Schedule

NAME = "1f1b"


def one_f_one_b(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """`2 (n + m - 1)` clocks, `min(n - i, m)` micro-batches in flight on stage i.

    Raises:
        PlanError: The sizes are wrong.

    Source: docs/facts.md section 5 (PipeDream-Flush, DAPPLE).
    """
    check_one_stage_a_mesh(NAME, num_stages, num_microbatches, num_meshes)
    return alternating(NAME, num_microbatches, range(num_stages, 0, -1))
