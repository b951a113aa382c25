"""How many micro-batches a stage or a mesh holds activations of; memory follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Schedule


def held_at_peak(
    schedule: Schedule, stage: int, held_bytes: float, late_bytes: float
) -> tuple[int, int]:
    """Return the micro-batches of a stage that are held when it holds most.

    Args:
        schedule: A schedule.
        stage: The stage.
        held_bytes: Bytes held for a micro-batch from the start of its `F` to the end of its `B`.
        late_bytes: Bytes held from there to the end of its `W`, where the backward is split.

    Returns:
        Micro-batches between `F` and `B`, and between `B` and `W`.
    """
    now = best = (0, 0)
    most = 0.0
    for task in schedule.tasks[schedule.mesh_of_stage[stage]]:
        if task.stage != stage:
            continue
        if task.kind == FORWARD:
            now = now[0] + 1, now[1]
        num_bytes = now[0] * held_bytes + now[1] * late_bytes
        if num_bytes > most:
            best, most = now, num_bytes
        if task.kind == BACKWARD:
            now = now[0] - 1, now[1] + schedule.splits_backward
        elif task.kind == WEIGHT:
            now = now[0], now[1] - 1
    return best


def held_on_mesh(schedule: Schedule, mesh: int, held_bytes: Sequence[float]) -> dict[int, int]:
    """Return the micro-batches of each stage of a mesh that are held when the mesh holds most.

    Args:
        schedule: A schedule that does not split the backward.
        mesh: The mesh.
        held_bytes: For each stage of the pipeline the bytes held for a micro-batch from the start
            of its `F` to the end of its `B`.
    """
    now = {k: 0 for k, m in enumerate(schedule.mesh_of_stage) if m == mesh}
    best, most = dict(now), 0.0
    for task in schedule.tasks[mesh]:
        if task.kind == FORWARD:
            now[task.stage] += 1
            num_bytes = sum(count * held_bytes[k] for k, count in now.items())
            if num_bytes > most:
                best, most = dict(now), num_bytes
        else:
            now[task.stage] -= 1
    return best
