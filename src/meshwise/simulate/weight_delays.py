"""Gradients of weights that run later: by how many half steps, and what waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.stage import Stage
from meshwise.schedules.delay import spread_delays, with_delays
from meshwise.schedules.in_flight import Held, held_at_peak
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.stage_pipeline import stage_pipeline

# Step times that differ by less are equal but for rounding.
_SAME = 1e-9
# Longer delays to try without a gain: with dozens of stages each try is seconds of simulation.
_PATIENCE = 6
# With n times as many stages only every n-th delay is tried at first.
_ONE_BY_ONE = 16
# To choose a delay, steps of this many micro-batches a stage and of twice as many are simulated.
# The time of a longer step follows from the two.
_FEW = 8


def asked_delays(
    schedule: PipelineSchedule, stages: Sequence[Stage], cluster: ClusterSpec, count: int
) -> tuple[int, ...]:
    """Return the half steps by which each stage delays its gradients of weights: as few as suffice.

    Delays grow from 0 on the first stage.  They are the least with which a simulated step takes no
    longer than one without delays whose transfers take no time; where none does, the least of
    those with which it is shortest.  Of many micro-batches a few are simulated for that, since all
    but the first and the last ones take equally long.  Delays that do not fit into memory are not
    tried, and no more are tried after `_PATIENCE` in a row without a gain.  With many stages a few
    delays are tried first, and then those around the best of them.

    Args:
        schedule: The schedule that is asked for; one that does not delay weights gives no delays.
        stages: The stages.
        cluster: The cluster on which they run.
        count: Micro-batches of a step.

    Source: docs/facts.md section 3 (AlpaComm), with uneven stages and the cluster's own links.
    """
    if not schedule.delays_weights:
        return ()

    few = count if count <= 2 * _FEW * len(stages) else _FEW * len(stages)
    tables = {n: schedule.table(len(stages), n, len(stages)) for n in {few, min(2 * few, count)}}

    def delayed(k: int, microbatches: int) -> Schedule:
        return with_delays(tables[microbatches], spread_delays(k, len(stages)))

    def step_s(k: int, stages: Sequence[Stage]) -> float:
        hides, mesh_of_stage = schedule.hides_transfers, tables[few].mesh_of_stage
        pipeline = stage_pipeline(stages, cluster, mesh_of_stage, hides_transfers=hides)
        least_s = pipeline.step_time_s(delayed(k, few))
        if few == count:
            return least_s
        more_s = pipeline.step_time_s(delayed(k, 2 * few))
        return more_s + (more_s - least_s) * (count - 2 * few) / few

    enough = step_s(0, [replace(stage, send_bytes=0) for stage in stages]) * (1 + _SAME)
    best, least = 0, max(step_s(0, stages), enough)
    most = 4 * max(len(stages) - 1, 1)
    coarse = 2 * max(1, len(stages) // _ONE_BY_ONE)
    for stride in dict.fromkeys((coarse, 2)):
        # Those around the best coarse one are tried one by one, the least of equal ones first.
        first = max(best - coarse, 0) + stride
        last = most if stride == coarse else min(best + coarse - stride, most)
        for k in range(first, last + 1, stride):
            # As much waits in few micro-batches as in all.
            is_hopeless = k > best and (least <= enough or k > best + stride * _PATIENCE)
            if is_hopeless or not fits(stages, delayed(k, few)):
                break
            now = max(step_s(k, stages), enough)
            if now < least * (1 - _SAME) or (k < best and now <= least):
                best, least = k, now
    return tuple(spread_delays(best, len(stages)))


def fits(stages: Sequence[Stage], schedule: Schedule) -> bool:
    """Return whether what waits for gradients of weights fits, as far as it is known.

    Args:
        stages: The stages of the pipeline.
        schedule: It splits the backward pass.
    """
    return all(
        stage.peak_bytes <= stage.memory_bytes
        for stage in at_most_held(stages, schedule)
        if stage.weights is not None
    )


def at_most_held(stages: Sequence[Stage], schedule: Schedule) -> tuple[Stage, ...]:
    """Return the stages with the micro-batches that each holds when its mesh holds most.

    Args:
        stages: The stages of the pipeline.
        schedule: Their schedule.
    """
    held_bytes = [stage.microbatch_bytes for stage in stages]
    late_bytes = [0 if stage.weights is None else stage.weights.held_bytes for stage in stages]
    found: dict[int, Held] = {}
    for mesh in range(schedule.num_meshes):
        found |= held_at_peak(schedule, mesh, held_bytes, late_bytes)
    return tuple(
        replace(
            stage,
            in_flight=found[k].in_flight,
            weights=stage.weights and replace(stage.weights, waiting=found[k].waiting),
        )
        for k, stage in enumerate(stages)
    )
