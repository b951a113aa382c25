"""Lower bounds of pipelines with several stages a mesh, however their layers are cut.

Stages k = 0..S-1 on n meshes, t_k the seconds of a micro-batch on stage k, B micro-batches.  No
mesh ends before it has done its own work, and the meshes together do all of it:

    T >= 1/n sum_k (B + w_k) t_k,        T >= B max_k t_k,        T >= B sum of some layers.

w_k counts meshes that idle while stage k works.  Where a backward pass is one task, mesh i waits
for the first micro-batch to pass the stages before its first one, and these work on after its last
task; its first stage is stage i, so w_k = n - 1 - k for k < n.  Else w_k = 0.

Layers are whole: of the q n + 1 slowest ones q + 1 lie on one mesh (`crowded`).

A mesh holds what its stages hold all the time, at some time activations of h_k micro-batches of
stage k, and what one of its v stages uses while it runs, no less than the mean of them.  The meshes
together have n times the memory of one:

    sum_k (resident_k + h_k microbatch_k + temporary_k / v) <= n memory.

Both sums are the least over cuts of the layers into S runs (`best_cuts.least_sum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from meshwise.inter.search.best_cuts import least_of_largest, least_sum
from meshwise.kernels.arrays import Floats
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.pipeline_schedule import PipelineSchedule


def least_step_s(
    loop_s: Floats, schedule: PipelineSchedule, num_meshes: int, num_microbatches: int
) -> float:
    """Return seconds that no simulated step takes less than; infinite if there is no cut.

    Args:
        loop_s: Seconds of all micro-batches of each run of layers, (first layer, last layer), or
            bounds of them; without gathering what other stages send.
        schedule: The schedule.
        num_meshes: n.
        num_microbatches: B.
    """
    stages = num_meshes * schedule.chunks
    waits = np.zeros(stages)
    if not schedule.splits_backward:
        waits[:num_meshes] = np.arange(num_meshes)[::-1]
    slowest = least_of_largest(loop_s, stages)
    work_s = least_sum(loop_s, loop_s, waits / num_microbatches)
    return max(slowest, work_s / num_meshes, crowded(np.diagonal(loop_s), num_meshes))


def crowded(amounts: Floats, num_meshes: int) -> float:
    """Return the least that the fullest mesh has of amounts that cannot be divided.

    Args:
        amounts: Of each layer.
        num_meshes: n.
    """
    falling = np.sort(amounts)[::-1]
    most = (len(amounts) - 1) // num_meshes
    places = [q * num_meshes for q in range(most + 1)]
    return max(float(falling[at - q : at + 1].sum()) for q, at in enumerate(places))


def least_held_bytes(
    resident_bytes: Floats, microbatch_bytes: Floats, held: Sequence[int], num_meshes: int
) -> float:
    """Return bytes that the fullest mesh holds at least, one device; infinite if there is no cut.

    Args:
        resident_bytes: Held all the time by each run of layers, or bounds of it; and the v-th part
            of what it uses while it runs.
        microbatch_bytes: Held for each micro-batch in flight, or bounds of it.
        held: For each stage micro-batches in flight at one time of its mesh (`held_together`).
        num_meshes: n.
    """
    return least_sum(resident_bytes, microbatch_bytes, np.array(held, np.float64)) / num_meshes


@lru_cache(maxsize=4096)
def held_together(
    schedule: PipelineSchedule, num_meshes: int, num_microbatches: int
) -> tuple[int, ...]:
    """Return for each stage micro-batches in flight when its mesh holds most of them.

    Args:
        schedule: The schedule.
        num_meshes: n.
        num_microbatches: B.
    """
    stages = num_meshes * schedule.chunks
    table = schedule.table(stages, num_microbatches, num_meshes)
    found = [0] * stages
    for mesh in range(num_meshes):
        for stage, held in held_at_peak(table, mesh, [1.0] * stages, [0.0] * stages).items():
            found[stage] = held.in_flight
    return tuple(found)
