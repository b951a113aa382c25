"""Eager 1F1B: twice as far ahead as 1F1B, so that a transfer can hide behind a forward."""

from __future__ import annotations

from meshwise.schedules.one_stage_a_mesh import alternating, check_one_stage_a_mesh
from meshwise.schedules.schedule import Schedule

NAME = "eager-1f1b"


def eager_one_f_one_b(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """`2 (n + m - 1)` clocks, `min(2 (n - i) - 1, m)` micro-batches in flight on stage i.

    Raises:
        PlanError: The sizes are wrong.

    Source: docs/facts.md sections 3 and 5 (AlpaComm).
    """
    check_one_stage_a_mesh(NAME, num_stages, num_microbatches, num_meshes)
    warm_up = [2 * (num_stages - stage) - 1 for stage in range(num_stages)]
    return alternating(NAME, num_microbatches, warm_up)
