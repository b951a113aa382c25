"""A user's step and a cluster become a planned pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from meshwise.errors import InfeasibleError, PlanError, TraceError
from meshwise.inter.clustering.layer_count import clustered, regular_layers
from meshwise.inter.clustering.operator_chain import OperatorChain
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.variant_costs import LayerTimes
from meshwise.inter.kernel_set import LATE
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.options import IntraOptions
from meshwise.jax_compat import PyTree
from meshwise.kernels.background import compiling_behind
from meshwise.plan.counts.walk import has_ring
from meshwise.plan.fits import check_state_fits
from meshwise.planner.layers_offload import checked_hosts, layers_offload, offloadable_bytes
from meshwise.planner.memory_share import smaller_request, whole_plan
from meshwise.planner.offload import ALL_IN_HOST, possible_offload
from meshwise.planner.schedule_choice import PlannedPipeline, planned_layers
from meshwise.request.pipeline_pins import PipelinePin, read_pins
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.system.collector import collection_paused
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.layers.chain import chain_of, operator_chain
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.layers.stacks.unstack import unstacked
from meshwise.trace.step import OpenStep, Statistics, StepSignature, open_step, state_bytes


def layers_of(
    fun: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    signature: StepSignature,
    cut: int | Callable[[OperatorChain], Ranges] | None = None,
    *,
    statistics: Statistics = "exact",
    joins_attention: bool = False,
) -> tuple[Layering, float]:
    """Cut a step into layers.

    Args:
        fun: The step, static arguments bound.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        signature: Which arguments are batch data.
        cut: Into how many layers eq. 6 clusters the operators, or what returns the first and last
            operator of each layer; None: as many layers as repeat.
        statistics: "exact", or "local" for statistics of each micro-batch.
        joins_attention: Make each attention that is found one operator.

    Returns:
        The layers, and the FLOP of the forward pass on the whole batch.

    Raises:
        TraceError: the step cannot be traced or cut, or no argument is batch data.
    """
    opened = open_step(fun, args, kwargs, signature)
    joined = with_attention(opened) if joins_attention else None
    return _layering(opened if joined is None else joined, cut, statistics)


def _layering(
    opened: OpenStep,
    cut: int | Callable[[OperatorChain], Ranges] | None,
    statistics: Statistics,
) -> tuple[Layering, float]:
    sizes = {opened.in_avals[i].shape[dim] for i, dim in opened.batch_dims.items()}
    if len(sizes) != 1:
        raise TraceError(
            f"a pipeline runs micro-batch by micro-batch, but the batch arguments have batch "
            f"sizes {sorted(sizes) or 'none'}; name arguments of one batch with batch_argnums"
        )
    if 0 in sizes:
        raise TraceError("the batch is empty (0 rows), so it has no micro-batches; pass rows")
    flat = unstacked(opened)
    step = flat.step
    split = split_step(step.closed, step.batch_dims, step.aliases, step.names)
    chain = chain_of(split)
    numbers = operator_chain(chain)
    if callable(cut):
        ranges = cut(numbers)
    else:
        found = regular_layers(numbers) if cut is None else clustered(numbers, cut)
        if found is None:
            raise TraceError(f"the forward pass has no {cut} layers; ask for fewer")
        ranges = found.ranges
    local = statistics == "local"
    layers = Layering(split, chain, ranges, sizes.pop(), local_statistics=local, ends=flat)
    return layers, math.fsum(chain.flop)


def plan_pipeline(
    fun: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    signature: StepSignature,
    request: PipelineRequest,
    report: Callable[[str], object] = lambda _: None,
    records: LayerRecords | None = None,
) -> PlannedPipeline:
    """Find the fastest pipeline for a step, and simulate it.

    Args:
        fun: The step, static arguments bound.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        signature: Which arguments are batch data.
        request: What is asked.
        report: Is told of progress.
        records: What was found out about layers before, to be added to; None: nothing.

    Raises:
        TraceError: the step cannot be cut.
        InfeasibleError: nothing fits; before the step is traced where its state alone does not.
        PlanError: a number of micro-batches does not divide the batch, or pins contradict each
            other, the cluster or its memory.
        PinError: a pin is not understood or names nothing.
    """
    pins = read_pins(request.pins)
    whole, request = request, smaller_request(request)
    num_bytes = state_bytes(args, signature)
    if possible_offload(request.offload, request.cluster.slowest().device) is False:
        check_state_fits(num_bytes, request.cluster, request.memory_bytes)
    pins = (*pins, *_asked(request)) if pins else ()
    search = partial(
        _searched,
        request=request,
        report=report,
        pins=pins,
        records=records,
        num_bytes=num_bytes,
    )
    with collection_paused(), compiling_behind(LATE):
        report("tracing")
        opened = open_step(fun, args, kwargs, signature)
        found = _with_attention(opened, request, report, search)
    method = f"Auto(stages={request.num_stages or 'auto'!r})"
    parameters = signature.parameters or tuple((n, "") for n in range(len(args)))
    plan = replace(whole_plan(found.plan, whole), method=method, parameters=parameters)
    return replace(found, plan=plan)


def _searched(
    opened: OpenStep,
    request: PipelineRequest,
    report: Callable[[str], object],
    pins: tuple[PipelinePin, ...],
    records: LayerRecords | None,
    num_bytes: int,
) -> PlannedPipeline:
    """Return the fastest pipeline of a step, whose state takes so many bytes."""
    layers, flop = _layering(opened, request.num_layers, request.statistics)
    for note in layers.ends.notes if layers.ends else ():
        report(note)
    report(f"{len(layers.classes)} layers of {len(set(layers.classes))} kinds")
    options = search_options(layers, flop, request)
    asked = layers_offload(layers, request.offload, request.cluster.slowest().device)
    with _timed(layers, request, report) as times:

        def planned(offload: bool) -> PlannedPipeline:
            apart = offloadable_bytes(layers) if offload else 0
            check_state_fits(num_bytes - apart, request.cluster, request.memory_bytes)
            asking = replace(options, intra=replace(options.intra, offload=offload))
            found = planned_layers(layers, request.cluster, asking, report, pins, times, records)
            return checked_hosts(found) if offload else found

        if asked is not None:
            return planned(asked)
        try:
            return planned(False)
        except InfeasibleError as error:
            report(f"{error}; again {ALL_IN_HOST}")
            with suppress(InfeasibleError, PlanError):
                return planned(True)
            raise


def _with_attention(
    opened: OpenStep,
    request: PipelineRequest,
    report: Callable[[str], object],
    searched: Callable[[OpenStep], PlannedPipeline],
) -> PlannedPipeline:
    """Return the fastest pipeline, with attention as one operator where its keys go round.

    That is looked for where the batch has fewer rows than there are devices, or where nothing else
    fits: else rows of the batch are the better thing to split.

    Raises:
        InfeasibleError: nothing fits.
    """
    found, failure = None, None
    try:
        found = searched(opened)
    except InfeasibleError as error:
        failure = error
    rows = [opened.in_avals[i].shape[dim] for i, dim in opened.batch_dims.items()]
    if found is None or min(rows) < request.cluster.num_devices:
        joined = with_attention(opened)
        if joined is not None:
            report("the same with attention as one operator")
            try:
                other = searched(joined)
            except InfeasibleError:
                other = None
            if other is not None and _is_better(other, found):
                return replace(other, plan=replace(other.plan, joins_attention=True))
    if found is None:
        assert failure is not None
        raise failure
    return found


def _is_better(joined: PlannedPipeline, found: PlannedPipeline | None) -> bool:
    """Return whether a plan with attention as one operator is taken."""
    if found is None:
        return True
    return joined.plan.simulated_s < found.plan.simulated_s and _has_ring(joined)


def _has_ring(planned: PlannedPipeline) -> bool:
    """Return whether keys go round in any layer."""
    plan, count = planned.plan, planned.plan.num_microbatches
    return any(
        has_ring(
            planned.layers.graph(layer.equal_to, layer.equal_to, count, stage.remat).graph,
            decision,
            stage.mesh.sizes,
        )
        for stage, decisions in zip(plan.stages, planned.decisions, strict=True)
        for layer, decision in zip(stage.layers, decisions, strict=True)
    )


@contextmanager
def _timed(
    layers: Layering, request: PipelineRequest, report: Callable[[str], object]
) -> Iterator[LayerTimes | None]:
    """Return what times layers, if they are to be measured."""
    if request.measure is False:
        yield None
        return
    # What is planned only is planned without any of this.
    from meshwise.calibrate.layer_times import MeasuredTimes
    from meshwise.calibrate.measured_layers import measuring
    from meshwise.runtime.devices import devices_for

    devices = devices_for(request.cluster.num_devices)
    if request.measure is not True:
        yield MeasuredTimes(layers, devices, request.measure, report)
        return
    with measuring() as measure:
        yield MeasuredTimes(layers, devices, measure, report)


def search_options(layers: Layering, step_flop: float, request: PipelineRequest) -> SearchOptions:
    """Return what is searched for given layers."""
    return SearchOptions(
        batch_size=layers.batch_size,
        step_flop=step_flop,
        num_microbatches=request.num_microbatches,
        schedules=request.schedules,
        transfers=request.transfers,
        remats=request.remats,
        memory_bytes=request.memory_bytes,
        use_all_devices=request.use_all_devices,
        num_stages=request.num_stages,
        intra=IntraOptions(time_limit_s=request.time_limit_s, seed=request.seed),
    )


def _asked(request: PipelineRequest) -> Iterator[PipelinePin]:
    """Yield what is asked for beside the pins, which may contradict it."""
    if request.num_stages is not None:
        yield PipelinePin(text=f"num_stages={request.num_stages}", num_stages=request.num_stages)
    if request.num_microbatches is not None:
        counts = request.num_microbatches
        yield PipelinePin(text=f"num_microbatches={','.join(map(str, counts))}", counts=counts)
