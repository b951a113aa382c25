"""How many micro-batches a mesh holds activations of; memory follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwise.schedules.schedule import BACKWARD, FORWARD, Schedule


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
    now = {stage: Held(0, 0) for stage in schedule.stages_on(mesh)}
    best, most, num_bytes = dict(now), 0.0, 0.0
    for kind, stage, _ in schedule.tasks[mesh]:
        in_flight, waiting = now[stage]
        if kind == FORWARD:
            in_flight, num_bytes = in_flight + 1, num_bytes + held_bytes[stage]
        now[stage] = Held(in_flight, waiting)
        if num_bytes > most:
            best, most = dict(now), num_bytes
        if kind == BACKWARD:
            in_flight, num_bytes = in_flight - 1, num_bytes - held_bytes[stage]
            if schedule.splits_backward:
                waiting, num_bytes = waiting + 1, num_bytes + late_bytes[stage]
        elif kind != FORWARD:
            waiting, num_bytes = waiting - 1, num_bytes - late_bytes[stage]
        now[stage] = Held(in_flight, waiting)
    return best
