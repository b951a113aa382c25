"""How many micro-batches a mesh holds activations of; memory follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Schedule


class Held(NamedTuple):
    """For how many micro-batches of a stage a mesh holds something.

    Attributes:
        in_flight: Between the start of `F` and the end of `B`.
        waiting: From there to the end of `W`, where the backward is split.
    """

    in_flight: int
    waiting: int


def held_at_peak(
    schedule: Schedule, mesh: int, held_bytes: Sequence[float], late_bytes: Sequence[float]
) -> dict[int, Held]:
    """Return the micro-batches of each stage of a mesh that are held when the mesh holds most.

    Args:
        schedule: A schedule.
        mesh: The mesh.
        held_bytes: For each stage of the pipeline the bytes held for a micro-batch from the start
            of its `F` to the end of its `B`.
        late_bytes: The bytes held from there to the end of its `W`, where the backward is split.
    """
    tasks = schedule.tasks[mesh]
    num_bytes = most = 0.0
    peak = 0  # how many tasks have begun by then
    for position, (kind, stage, _) in enumerate(tasks):
        if kind == FORWARD:
            num_bytes += held_bytes[stage]
            if num_bytes > most:
                peak, most = position + 1, num_bytes
            continue
        if num_bytes > most:
            peak, most = position, num_bytes
        if kind == BACKWARD:
            num_bytes -= held_bytes[stage]
            if schedule.splits_backward:
                num_bytes += late_bytes[stage]
        else:
            num_bytes -= late_bytes[stage]
    begun = Counter((kind, stage) for kind, stage, _ in tasks[:peak])
    found: dict[int, Held] = {}
    for stage in schedule.stages_on(mesh):
        ended = begun[BACKWARD, stage]
        waiting = ended - begun[WEIGHT, stage] if schedule.splits_backward else 0
        found[stage] = Held(begun[FORWARD, stage] - ended, waiting)
    return found
