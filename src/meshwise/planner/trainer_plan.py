"""The fastest that a trainer which is not ours can do, for a step that has a free plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwise.baselines.pipelines.block_layers import block_ranges
from meshwise.planner.pipeline import search_options
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.trainer_point_plan import PointPlanner
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.system.collector import collection_paused
from meshwise.trace.layers.chain import operator_chain
from meshwise.trace.layers.layering import Layering
from meshwise.trainers.answer import TrainerAnswer
from meshwise.trainers.best_point import best_point
from meshwise.trainers.trainer import Trainer


def trainer_answer(
    trainer: Trainer,
    planned: PlannedPipeline,
    request: PipelineRequest,
    report: Callable[[str], object] = lambda _: None,
) -> TrainerAnswer:
    """Return the fastest point of a trainer for a step, beside its free plan.

    Where the point is the faster one, it is planned as ours; if that plan is faster than the free
    plan, it becomes the free plan.

    Args:
        trainer: The trainer.
        planned: The free plan of the step.
        request: What was asked of it: cluster, batch, micro-batches, remat and memory hold for the
            trainer too.
        report: Is told of progress.

    Raises:
        ClusterError: hosts differ.
        InfeasibleError: the trainer has no point that fits.
    """
    layers = planned.layers
    with collection_paused():
        blocks = in_blocks(layers)
        options = search_options(blocks, planned.plan.step_flop, request)
        best = best_point(trainer, blocks, request.cluster, options, report)
        if best.timeline.step_time_s < planned.timeline.step_time_s:
            report(f"{trainer.name}: the point as a plan of ours")
            planner = PointPlanner(
                trainer=trainer, layers=blocks, cluster=request.cluster, options=options
            )
            planned = _faster(planned, planner.plan(best.point, best.sizes))
    return TrainerAnswer(trainer=trainer, best=best, plan=planned.plan, timeline=planned.timeline)


def _faster(planned: PlannedPipeline, other: PlannedPipeline | None) -> PlannedPipeline:
    """Return the faster one of two plans, as an answer to what was asked of the first one."""
    if other is None or other.timeline.step_time_s >= planned.timeline.step_time_s:
        return planned
    asked = planned.plan
    plan = replace(
        other.plan,
        method=asked.method,
        parameters=asked.parameters,
        spelling=asked.spelling,
        joins_attention=asked.joins_attention,
    )
    return replace(other, plan=plan)


def in_blocks(layers: Layering) -> Layering:
    """Return the same step, cut where the model repeats."""
    chain = layers.cutter.chain
    return Layering(
        layers.split,
        chain,
        block_ranges(operator_chain(chain)),
        layers.batch_size,
        local_statistics=layers.local_statistics,
        ends=layers.ends,
    )
