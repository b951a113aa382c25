"""A user's step and a cluster -> a pipeline.  No device is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwise.cluster.spec import Cluster
from meshwise.collector import collection_paused
from meshwise.errors import InfeasibleError, MeshwiseError, PlanError, TraceError
from meshwise.inter.clustering import Ranges
from meshwise.inter.finish import NamedLayers, finished, stage_decisions
from meshwise.inter.interleave import interleaved_pipelines
from meshwise.inter.operator_chain import OperatorChain
from meshwise.inter.piece import REMATS, Remat
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.inter.pipeline_schedule import (
    SEARCHED,
    PipelineSchedule,
    name_of,
    searched_together,
)
from meshwise.inter.regular import clustered, regular_layers
from meshwise.inter.replan import replanned
from meshwise.inter.search import Found
from meshwise.inter.search_space import SearchOptions
from meshwise.inter.split_stage import WaitingWeightsError
from meshwise.inter.variants import LayerTimes, VariantCosts
from meshwise.pinned_search import pinned_search
from meshwise.pipeline_pins import PipelinePin, read_pins
from meshwise.plan.decision import GraphDecision
from meshwise.simulate.timeline import Timeline
from meshwise.trace.layers.chain import chain_of, operator_chain
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.layers.unstack import unstacked
from meshwise.trace.step import Statistics, StepSignature, open_step

if TYPE_CHECKING:
    from meshwise.measure.layer_times import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRequest:
    """What is asked of a pipeline.

    Attributes:
        cluster: Where it runs.
        num_layers: Into how many layers the forward pass is cut; None: as many as repeat.
        num_microbatches: Values of B to try; None: powers of two.
        num_stages: Exactly so many; None: any number.
        schedules: To choose from.
        remats: To choose from.
        memory_bytes: Of a device; None: what the cluster has.
        use_all_devices: Whether every device must belong to a stage; None: where hosts are equal.
        statistics: "exact", or "local" for statistics (batch norm) of each micro-batch alone.
        pins: What is fixed, names and values as `pipeline_pins` reads them, patterns and layouts.
        measure: Whether layers are timed on the devices of this process, or what times them.
    """

    cluster: Cluster
    num_layers: int | None = None
    num_microbatches: tuple[int, ...] | None = None
    num_stages: int | None = None
    schedules: tuple[PipelineSchedule, ...] = SEARCHED
    remats: tuple[Remat, ...] = (REMATS[0], REMATS[-1])
    memory_bytes: int | None = None
    use_all_devices: bool | None = None
    statistics: Statistics = "exact"
    pins: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
    measure: bool | Measure = False


def layers_of(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    signature: StepSignature,
    num_layers: int | None = None,
    *,
    cut: Callable[[OperatorChain], Ranges] | None = None,
    statistics: Statistics = "exact",
) -> tuple[Layering, float]:
    """Cut a step into layers.

    Args:
        fun: The step, static arguments bound.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        signature: Which arguments are batch data.
        num_layers: How many; None: as many as repeat.
        cut: Says where, in place of the clustering of eq. 6.
        statistics: "exact", or "local" for statistics of each micro-batch.

    Returns:
        The layers, and the FLOP of the forward pass on the whole batch.

    Raises:
        TraceError: the step cannot be traced or cut, or no argument is batch data.
    """
    opened = open_step(fun, args, kwargs, signature)
    sizes = {opened.in_avals[i].shape[dim] for i, dim in opened.batch_dims.items()}
    if len(sizes) != 1:
        raise TraceError(
            f"a pipeline runs micro-batch by micro-batch, but the batch arguments have batch "
            f"sizes {sorted(sizes) or 'none'}; name arguments of one batch with batch_argnums"
        )
    flat = unstacked(opened)
    step = flat.step
    split = split_step(step.closed, step.batch_dims, step.aliases, step.names)
    chain = chain_of(split)
    numbers = operator_chain(chain)
    if cut is not None:
        ranges = cut(numbers)
    else:
        found = regular_layers(numbers) if num_layers is None else clustered(numbers, num_layers)
        if found is None:
            raise TraceError(f"the forward pass has no {num_layers} layers; ask for fewer")
        ranges = found.ranges
    local = statistics == "local"
    layers = Layering(split, chain, ranges, sizes.pop(), local_statistics=local, ends=flat)
    return layers, math.fsum(chain.flop)


# Of the memory, left free for gradients of weights that wait: beyond it there are better schedules.
_MOST_RESERVED = 0.5


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


def plan_pipeline(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    signature: StepSignature,
    request: PipelineRequest,
    report: Callable[[str], object] = lambda _: None,
) -> PlannedPipeline:
    """Find the fastest pipeline for a step, and simulate it.

    Args:
        fun: The step, static arguments bound.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        signature: Which arguments are batch data.
        request: What is asked.
        report: Is told of progress.

    Raises:
        TraceError: the step cannot be cut.
        InfeasibleError: nothing fits.
        PlanError: a number of micro-batches does not divide the batch, or pins contradict each
            other, the cluster or its memory.
        PinError: a pin is not understood or names nothing.
    """
    pins = read_pins(request.pins)
    with collection_paused():
        report("tracing")
        layers, flop = layers_of(
            fun, args, kwargs, signature, request.num_layers, statistics=request.statistics
        )
        for note in layers.ends.notes if layers.ends else ():
            report(note)
        report(f"{len(layers.classes)} layers of {len(set(layers.classes))} kinds")
        options = search_options(layers, flop, request)
        pins = (*pins, *_asked(request)) if pins else ()
        with _timed(layers, request, report) as times:
            return planned_layers(layers, request.cluster, options, report, pins, times)


@contextmanager
def _timed(
    layers: Layering, request: PipelineRequest, report: Callable[[str], object]
) -> Iterator[LayerTimes | None]:
    """What times layers, if they are to be measured."""
    if request.measure is False:
        yield None
        return
    # What is planned only is planned without any of this.
    from meshwise.measure.kept import measuring
    from meshwise.measure.layer_times import MeasuredTimes
    from meshwise.runtime.devices import devices_for

    devices = devices_for(request.cluster.num_devices)
    if request.measure is not True:
        yield MeasuredTimes(layers, devices, request.measure, report)
        return
    with measuring() as measure:
        yield MeasuredTimes(layers, devices, measure, report)


def search_options(layers: Layering, step_flop: float, request: PipelineRequest) -> SearchOptions:
    """What is searched for given layers."""
    return SearchOptions(
        batch_size=layers.batch_size,
        step_flop=step_flop,
        num_microbatches=request.num_microbatches,
        schedules=request.schedules,
        remats=request.remats,
        memory_bytes=request.memory_bytes,
        use_all_devices=request.use_all_devices,
        num_stages=request.num_stages,
    )


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
            planned.append(_with_room(layers, cluster, asked, report, pins, times, costs))
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
) -> PlannedPipeline:
    """`_planned_together` with room for gradients of weights that wait: the search knows of none.

    Where they do not fit the search is repeated with so much memory left free, at least twice as
    much as before, half of all at most.
    """
    first: WaitingWeightsError | None = None
    while True:
        try:
            return _planned_together(layers, cluster, options, report, pins, times, costs)
        except WaitingWeightsError as error:
            first = first or error
            reserved = options.reserved_share
            share = reserved + max(error.missing_share, reserved)
            if share > _MOST_RESERVED:
                raise first from (None if error is first else error)
            report(f"{error}; again with {share:.1%} of the memory left free for that")
            options = replace(options, reserved_share=share)
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
) -> PlannedPipeline:
    """`planned_layers` for schedules that one search chooses from, with costs of other searches."""
    if options.schedules[0].chunks > 1:
        return _interleaved(layers, cluster, options, report, pins, times, costs)
    source, found, costs = pinned_search(layers, cluster, options, pins, report, times, costs)
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


def _asked(request: PipelineRequest) -> Iterator[PipelinePin]:
    """What is asked for beside the pins, which may contradict it."""
    if request.num_stages is not None:
        yield PipelinePin(text=f"num_stages={request.num_stages}", num_stages=request.num_stages)
    if request.num_microbatches is not None:
        counts = request.num_microbatches
        yield PipelinePin(text=f"num_microbatches={','.join(map(str, counts))}", counts=counts)
