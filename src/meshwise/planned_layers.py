"""The fastest pipeline for given layers, simulated: search after search, all schedules together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.spec import Cluster
from meshwise.errors import InfeasibleError, MeshwiseError, PlanError
from meshwise.inter.finish import NamedLayers, finished, stage_decisions
from meshwise.inter.interleave import interleaved_pipelines
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.inter.pipeline_schedule import name_of, searched_together
from meshwise.inter.replan import replanned
from meshwise.inter.search import Found
from meshwise.inter.search_space import SearchOptions
from meshwise.inter.split_stage import WaitingWeightsError
from meshwise.inter.variants import LayerTimes, VariantCosts
from meshwise.pinned_search import pinned_search
from meshwise.pipeline_pins import PipelinePin
from meshwise.plan.decision import GraphDecision
from meshwise.simulate.timeline import Timeline
from meshwise.trace.layers.layering import Layering

# Of the memory, left free for gradients of weights that wait: beyond it others are better.
_LEAST_RESERVED, _MOST_RESERVED = 0.01, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A pipeline that was found.

    Attributes:
        layers: Of the step.
        plan: Its stages.
        timeline: Of a step, simulated.
        decisions: For each stage the plans of its layers.
    """

    layers: Layering
    plan: PipelinePlan
    timeline: Timeline
    decisions: tuple[tuple[GraphDecision, ...], ...]


def plan_layers(
    layers: Layering,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    pins: Sequence[PipelinePin] = (),
) -> tuple[PipelinePlan, Timeline]:
    """The plan of `planned_layers`, and its simulated timeline."""
    found = planned_layers(layers, cluster, options, report, pins)
    return found.plan, found.timeline


def planned_layers(
    layers: Layering,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    pins: Sequence[PipelinePin] = (),
    times: LayerTimes | None = None,
) -> PlannedPipeline:
    """Find the fastest pipeline for given layers, and simulate it.

    Args:
        layers: The layers.
        cluster: Where they run.
        options: What is searched, pins apart.
        report: Is told of progress.
        pins: What is fixed.
        times: Tells how long planned layers take; None: the model does.

    Raises:
        InfeasibleError: nothing fits.
        PlanError: a number of micro-batches does not divide the batch, or pins contradict each
            other, the cluster or its memory.
        PinError: a pin names nothing.
    """
    groups = searched_together(options.schedules)
    costs = None if pins else VariantCosts(layers, options.intra, times)
    if len(groups) == 1 or any(pin.schedule for pin in pins):
        return _with_room(layers, cluster, options, report, pins, times, costs)
    planned: list[PlannedPipeline] = []
    failed: list[MeshwiseError] = []
    for group in groups:
        names = ", ".join(map(name_of, group))
        report(f"schedules {names}")
        asked = replace(options, schedules=group)
        try:
            is_first = group is groups[0]
            planned.append(_with_room(layers, cluster, asked, report, pins, times, costs, is_first))
        except (InfeasibleError, PlanError) as error:
            report(f"schedules {names}: {error}")
            failed.append(error)
    if not planned:
        raise failed[0]
    best = min(planned, key=lambda p: p.plan.simulated_s)
    every = ", ".join(map(name_of, options.schedules))
    space = f"{best.plan.space}; the fastest by simulation of searches for {every}"
    return replace(best, plan=replace(best.plan, space=space))


def _with_room(
    layers: Layering,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object],
    pins: Sequence[PipelinePin],
    times: LayerTimes | None,
    costs: VariantCosts | None,
    seeks_remedies: bool = True,
) -> PlannedPipeline:
    """`_planned_together` with room for gradients of weights that wait: the search knows of none.

    Where they do not fit the search is repeated with so much memory left free, at least twice as
    much as before, half of all at most.
    """
    first: WaitingWeightsError | None = None
    while True:
        try:
            return _planned_together(
                layers, cluster, options, report, pins, times, costs, seeks_remedies
            )
        except WaitingWeightsError as error:
            first = first or error
            reserved = options.reserved_share
            share = reserved + max(error.missing_share, reserved, _LEAST_RESERVED)
            if share > _MOST_RESERVED:
                raise first from (None if error is first else error)
            report(f"{error}; again with {share:.1%} of the memory left free for that")
            options, seeks_remedies = replace(options, reserved_share=share), False
        except InfeasibleError as error:
            if first is None:
                raise
            raise first from error


def _planned_together(
    layers: Layering,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object],
    pins: Sequence[PipelinePin],
    times: LayerTimes | None,
    costs: VariantCosts | None,
    seeks_remedies: bool,
) -> PlannedPipeline:
    """`planned_layers` for schedules that one search chooses from, with costs of other searches."""
    if options.schedules[0].chunks > 1:
        return _interleaved(layers, cluster, options, report, pins, times, costs)
    source, found, costs = pinned_search(
        layers, cluster, options, pins, report, times, costs, seeks_remedies
    )
    found = replanned(found, costs, report)
    space = found.plan.space
    if pins:
        space = f"{space}; pins {', '.join(pin.text for pin in pins)}"
    if options.reserved_share:
        share = f"{options.reserved_share:.1%}"
        space = f"{space}; {share} of the memory left free for gradients of weights that wait"
    if times is not None:
        space = f"{space}; layers that were planned are measured, others bounded by the model"
    if space != found.plan.space:
        found = replace(found, plan=replace(found.plan, space=space))
    return _planned(layers, source, cluster, options, found, costs)


def _planned(
    layers: Layering,
    source: NamedLayers,
    cluster: Cluster,
    options: SearchOptions,
    found: Found,
    costs: VariantCosts,
) -> PlannedPipeline:
    """What was found as a plan that can be read, simulated and run."""
    plan, timeline = finished(
        source,
        cluster,
        found,
        costs,
        batch_size=layers.batch_size,
        step_flop=options.step_flop,
        tied=layers.tied_names(),
        cuts=layers.ranges,
    )
    decisions = stage_decisions(found, costs)
    return PlannedPipeline(layers=layers, plan=plan, timeline=timeline, decisions=decisions)


def _interleaved(
    layers: Layering,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object],
    pins: Sequence[PipelinePin],
    times: LayerTimes | None,
    costs: VariantCosts | None,
) -> PlannedPipeline:
    """The fastest by simulation of interleaved pipelines."""
    if pins or times is not None:
        what = f"pins ({', '.join(pin.text for pin in pins)})" if pins else "measured layers"
        raise PlanError(
            f"schedule interleaved-1f1b does not go together with {what} yet; leave one of them out"
        )
    costs = costs or VariantCosts(layers, options.intra)
    planned: list[PlannedPipeline] = []
    for found in interleaved_pipelines(cluster, options, options.schedules[0], costs, report):
        made = _planned(layers, layers, cluster, options, found, costs)
        # The closed form is of equal stages; what is simulated is what is promised.
        seconds = made.timeline.step_time_s
        plan = replace(made.plan, step_time_s=seconds, bound_s=seconds)
        planned.append(replace(made, plan=plan))
    return min(planned, key=lambda p: p.plan.simulated_s)
