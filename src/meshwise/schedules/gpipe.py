"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from meshwise.schedules.one_stage_a_mesh import alternating, check_one_stage_a_mesh
from meshwise.schedules.schedule import Schedule

NAME = "gpipe"


def gpipe(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """`2 (n + m - 1)` clocks, all m micro-batches in flight on every stage.

    Backwards go in the order of the forwards, so that gradients are summed in the same order as
    under the other schedules.

    Raises:
        PlanError: The sizes are wrong.

    Source: docs/facts.md sections 4 and 5.
    """
    check_one_stage_a_mesh(NAME, num_stages, num_microbatches, num_meshes)
    return alternating(NAME, num_microbatches, [num_microbatches] * num_stages)
