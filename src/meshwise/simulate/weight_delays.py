"""Gradients of weights that run later: by how many half steps, and what waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwise.cluster.spec import Cluster
from meshwise.plan.stage import Stage
from meshwise.schedules.delay import spread_delays, with_delays
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import Schedule
from meshwise.simulate.stage_run import simulate_stages

# Step times that differ by less are equal but for rounding.
_SAME = 1e-9


def asked_delays(
    schedule: PipelineSchedule, stages: Sequence[Stage], cluster: Cluster, count: int
) -> tuple[int, ...]:
    """By how many half steps each stage delays its gradients of weights: as little as suffices.

    Delays grow from 0 on the first stage.  They are the least with which a simulated step takes no
    longer than one without delays whose transfers take no time; where none does, the least of
    those with which it is shortest.  Longer delays than fit into memory are not looked at.

    Args:
        schedule: What is asked; without delays for none.
        stages: The stages.
        cluster: Where they run.
        count: B.

    Source: docs/facts.md section 3 (AlpaComm), with uneven stages and the cluster's own links.
    """
    if not schedule.delays_weights:
        return ()

    def step_s(k: int, stages: Sequence[Stage]) -> float:
        return simulate_stages(
            stages,
            cluster,
            schedule.table_name,
            count,
            hides_transfers=schedule.hides_transfers,
            delays=spread_delays(k, len(stages)),
        ).step_time_s

    table = make_schedule(
        schedule.table_name, num_stages=len(stages), num_microbatches=count, num_meshes=len(stages)
    )
    enough = step_s(0, [replace(stage, send_bytes=0) for stage in stages]) * (1 + _SAME)
    best, least = 0, step_s(0, stages)
    for k in range(2, 4 * max(len(stages) - 1, 1) + 1, 2):
        if least <= enough or not fits(stages, with_delays(table, spread_delays(k, len(stages)))):
            break
        now = step_s(k, stages)
        if now < least * (1 - _SAME):
            best, least = k, now
    return tuple(spread_delays(best, len(stages)))


def fits(stages: Sequence[Stage], schedule: Schedule) -> bool:
    """Whether what waits for gradients of weights fits, as far as it is known.

    Args:
        stages: Of the pipeline.
        schedule: It splits the backward pass.
    """
    return all(
        at_most_held(stage, schedule, number).peak_bytes <= stage.memory_bytes
        for number, stage in enumerate(stages)
        if stage.weights is not None
    )


def at_most_held(stage: Stage, schedule: Schedule, number: int) -> Stage:
    """Return a stage with the micro-batches that it holds when it holds most.

    Args:
        stage: The stage, its gradients of weights apart.
        schedule: It splits the backward pass.
        number: Of the stage.
    """
    late = stage.weights
    assert late is not None
    in_flight, waiting = held_at_peak(schedule, number, stage.microbatch_bytes, late.held_bytes)
    return replace(stage, in_flight=in_flight, weights=replace(late, waiting=waiting))
