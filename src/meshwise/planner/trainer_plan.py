"""The fastest that a trainer which is not ours can do, for a step that has a free plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from meshwise.baselines.pipelines.block_layers import block_ranges
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, MeshwiseError
from meshwise.inter.search.search_space import SearchOptions
from meshwise.planner.long_attention import layers_have_long_attention
from meshwise.planner.pipeline import layering_of, search_options
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.trainer_point_plan import PointPlanner
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.system.collector import collection_paused
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.layers.chain import operator_chain
from meshwise.trace.layers.layering import Layering
from meshwise.trainers.answer import TrainerAnswer
from meshwise.trainers.best_point import BestPoint, NothingFitsError, best_point
from meshwise.trainers.trainer import Trainer


def trainer_answer(
    trainer: Trainer,
    planned: PlannedPipeline,
    request: PipelineRequest,
    report: Callable[[str], object] = lambda _: None,
) -> TrainerAnswer:
    """Return the fastest point of a trainer for a step, beside its free plan.

    Where the batch has fewer rows than there are devices, or scores of attention take much of the
    step, attention is tried as one operator too.  Where the point is the faster one, it is planned
    as ours; if that plan is faster than the free plan, it becomes the free plan.

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
    cluster = request.cluster
    with collection_paused():
        blocks = in_blocks(planned.layers)
        options = search_options(blocks, planned.plan.step_flop, request)
        forms = [_Form(blocks, planned.plan.joins_attention)]
        if (joined := _joined_blocks(planned, request)) is not None:
            forms.append(_Form(joined, True))
        best, form = _best(trainer, forms, cluster, options, report)
        if best.timeline.step_time_s < planned.timeline.step_time_s:
            report(f"{trainer.name}: the point as a plan of ours")
            planner = PointPlanner(
                trainer=trainer, layers=form.blocks, cluster=cluster, options=options
            )
            planned = _faster(planned, planner.plan(best.point, best.sizes), form)
    return TrainerAnswer(trainer=trainer, best=best, plan=planned.plan, timeline=planned.timeline)


class _Form(NamedTuple):
    """A step, cut where the model repeats.

    Attributes:
        blocks: Its layers.
        joins_attention: Whether attention is one operator there.
    """

    blocks: Layering
    joins_attention: bool


def _joined_blocks(planned: PlannedPipeline, request: PipelineRequest) -> Layering | None:
    """Return the blocks of the step with attention as one operator, whose keys may go round.

    None if it is one operator in the free plan, if the batch has a row for each device and scores
    take little of the step, if no attention is found, or if the step cannot be cut so.
    """
    layers, cluster = planned.layers, request.cluster
    if planned.plan.joins_attention:
        return None
    is_long = layers_have_long_attention(layers, planned.plan.step_flop, cluster)
    if not is_long and layers.batch_size >= cluster.num_devices:
        return None
    with suppress(MeshwiseError):
        joined = with_attention(planned.user)
        if joined is not None:
            return layering_of(joined, block_ranges, request.statistics)[0]
    return None


def _best(
    trainer: Trainer,
    forms: Sequence[_Form],
    cluster: ClusterSpec,
    options: SearchOptions,
    report: Callable[[str], object],
) -> tuple[BestPoint, _Form]:
    """Return the fastest point in any form of the step, and that form.

    Raises:
        InfeasibleError: none fits in any form; where memory is too small, the error is that of the
            form that needs least.
    """
    best: tuple[BestPoint, _Form] | None = None
    refusals: list[MeshwiseError] = []
    for form in forms:
        if form is not forms[0]:
            report(f"{trainer.name}: with attention as one operator")
        below_s = math.inf if best is None else best[0].timeline.step_time_s
        try:
            found = best_point(trainer, form.blocks, cluster, options, report, below_s=below_s)
        except MeshwiseError as error:
            if form is forms[0] and not isinstance(error, InfeasibleError):
                raise
            refusals.append(error)
        else:
            best = found, form
    if best is None:
        nearest = [error for error in refusals if isinstance(error, NothingFitsError)]
        raise min(nearest, key=lambda error: error.num_bytes, default=refusals[0])
    return best


def _faster(
    planned: PlannedPipeline, other: PlannedPipeline | None, form: _Form
) -> PlannedPipeline:
    """Return the faster one of two plans, as an answer to what was asked of the first one."""
    if other is None or other.timeline.step_time_s >= planned.timeline.step_time_s:
        return planned
    asked = planned.plan
    plan = replace(
        other.plan,
        method=asked.method,
        parameters=asked.parameters,
        spelling=asked.spelling,
        joins_attention=form.joins_attention,
        joins_experts=asked.joins_experts,
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
