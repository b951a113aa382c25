"""A user's step and a cluster become a planned pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Protocol, TypeAlias

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, MeshwiseError, PlanError, TraceError
from meshwise.graph.graph import Graph
from meshwise.inter.clustering.layer_count import clustered, layers_for, regular_layers
from meshwise.inter.clustering.operator_chain import OperatorChain
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.variant_costs import LayerTimes, logical_views
from meshwise.inter.kernel_set import LATE
from meshwise.inter.search.least_work import least_work_s
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.search.unsearched_memory import NamedMemoryError
from meshwise.intra.limit.refusal import NoSuchPlanError
from meshwise.intra.options import IntraOptions
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.kernels.background import compiling_behind
from meshwise.plan.counts.walk import computes_hidden_scores, has_ring
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fits import check_state_fits
from meshwise.planner.attention_hint import with_attention_hint
from meshwise.planner.layers_offload import checked_hosts, layers_offload, offloadable_bytes
from meshwise.planner.long_attention import layers_have_long_attention
from meshwise.planner.memory_share import smaller_request, whole_plan
from meshwise.planner.mesh_plan import replicated_warnings
from meshwise.planner.offload import ALL_IN_HOST, possible_offload
from meshwise.planner.pinned_search import never
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.schedule_choice import planned_layers
from meshwise.request.constraints import dropped_in_stages
from meshwise.request.pins import check_arguments
from meshwise.request.pipeline_pins import PipelinePin, layouts_of, read_pins
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.system.collector import collection_paused
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.experts.replace import with_experts
from meshwise.trace.layers.chain import chain_of, operator_chain
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.layers.stacks.unstack import unstacked
from meshwise.trace.step import (
    OpenStep,
    Statistics,
    StepSignature,
    open_step,
    state_bytes,
    unequal_rows,
)
from meshwise.units import counted

# A number of layers, or what returns the first and last operator of each; None: as many as repeat.
_Cut: TypeAlias = int | Callable[[OperatorChain], Ranges] | None
# If the least memory that suffices is more than there is by less than this factor, larger layers,
# which keep less where all is computed again, may fit.
_NEARLY = 2.0
# Larger layers are at most this share of the number before: whole blocks in place of halves.
_FEWER = 0.6


def layers_of(
    fun: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    signature: StepSignature,
    cut: _Cut = None,
    *,
    statistics: Statistics = "exact",
    joins_attention: bool = False,
    joins_experts: bool = False,
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
        joins_experts: Make the experts of each layer that are found one operator.

    Returns:
        The layers, and the FLOP of the forward pass on the whole batch.

    Raises:
        TraceError: the step cannot be traced or cut, or no argument is batch data.
    """
    opened = open_step(fun, args, kwargs, signature)
    if joins_experts:
        opened = with_experts(opened)
    joined = with_attention(opened) if joins_attention else None
    return layering_of(opened if joined is None else joined, cut, statistics)


def layering_of(
    opened: OpenStep,
    cut: _Cut,
    statistics: Statistics,
    num_stages: int = 1,
    check: Callable[[OpenStep], object] = lambda _: None,
) -> tuple[Layering, float]:
    """Cut a step that JAX has traced into layers.

    Args:
        opened: The step.
        cut: As `layers_of` has it.
        statistics: "exact", or "local" for statistics of each micro-batch.
        num_stages: There are at least as many layers, if the step has them.
        check: Is called with the step once what repeats in it is written out.

    Returns:
        The layers, and the FLOP of the forward pass on the whole batch.

    Raises:
        TraceError: the step cannot be cut, or no argument is batch data.
    """
    rows = {i: (dim, opened.in_avals[i].shape[dim]) for i, dim in opened.batch_dims.items()}
    sizes = {size for _, size in rows.values()}
    if len(sizes) != 1:
        unequal = unequal_rows({opened.labels[i]: row for i, row in rows.items()})
        raise TraceError(
            "a pipeline runs micro-batch by micro-batch, but "
            + (
                f"batch arguments have different numbers of rows: {unequal}"
                if unequal
                else "no argument is batch data; name the batch arguments with batch_argnums"
            )
        )
    if 0 in sizes:
        raise TraceError("the batch is empty (0 rows), so it has no micro-batches; pass rows")
    flat = unstacked(opened)
    step = flat.step
    check(step)
    split = split_step(step.closed, step.batch_dims, step.aliases, step.names)
    chain = chain_of(split)
    numbers = operator_chain(chain)
    if callable(cut):
        ranges = cut(numbers)
    else:
        found = layers_for(numbers, num_stages) if cut is None else clustered(numbers, cut)
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
        PinError: a pin is not understood, names nothing, or can be kept on no mesh.
    """
    pins = read_pins(request.pins)
    whole, request = request, smaller_request(request)
    num_bytes = state_bytes(args, signature)
    if possible_offload(request.offload, request.cluster.slowest().device) is False:
        check_state_fits(num_bytes, request.cluster, request.memory_bytes)
    pins = (*pins, *_asked(request)) if pins else ()
    with collection_paused(), compiling_behind(LATE):
        report("tracing")
        opened = with_experts(open_step(fun, args, kwargs, signature))

        def searched(
            step: _CutStep,
            offload: bool,
            seeks_remedies: Callable[[], bool],
            beats: PlannedPipeline | None = None,
        ) -> PlannedPipeline:
            apart = offloadable_bytes(step.layers) if offload else 0
            check_state_fits(num_bytes - apart, request.cluster, request.memory_bytes)
            intra = replace(step.options.intra, offload=offload)
            seeks_remedies = seeks_remedies if request.placement is None else never
            with _timed(step.layers, request, report) as times:
                found = planned_layers(
                    step.layers,
                    request.cluster,
                    replace(step.options, intra=intra),
                    report,
                    pins,
                    times,
                    records,
                    seeks_remedies=seeks_remedies,
                    beats=beats,
                )
            return checked_hosts(found) if offload else found

        # Where state is to stay as another plan has it, attention has the form of that plan.
        joins = request.placement is not None and request.placement.plan.joins_attention
        step = with_attention(opened) if joins else None
        if step is None:
            found = _fastest(opened, request, report, pins, searched)
        else:
            found = _joined(_fastest(step, request, report, pins, searched))
    method = f"Auto(stages={request.num_stages or 'auto'!r})"
    parameters = signature.parameters or tuple((n, "") for n in range(len(args)))
    dropped = dropped_in_stages(opened.closed)
    plan = replace(
        whole_plan(found.plan, whole),
        method=method,
        parameters=parameters,
        spelling=opened.spelling,
        joins_experts=opened.joins_experts,
        warnings=(
            *found.plan.warnings,
            *dropped,
            *replicated_warnings(found.plan.replicated, " of its stage"),
        ),
    )
    forward = found.layers.split.forward.jaxpr
    return replace(found, plan=with_attention_hint(plan, lambda: forward))


def _check_pins(
    pins: Sequence[PipelinePin], cluster: ClusterSpec, num_stages: int, opened: OpenStep
) -> None:
    """Check pins of layouts.

    Axes may have size 1 where a mesh or submesh is asked for, or a stage for each device.
    """
    layouts = layouts_of(pins)
    if not layouts:
        return
    views = [mesh for kind in cluster.submesh_kinds() for mesh in logical_views(kind)]
    stages = [pin.stage for pin in pins if pin.stage is not None]
    check_arguments(
        layouts,
        [(name, leaf.shape) for name, leaf in zip(opened.names, opened.in_avals, strict=True)],
        views,
        divides=max([num_stages, *(pin.num_stages or 0 for pin in pins)]) < cluster.num_devices
        and all(stage.submesh is None and stage.mesh is None for stage in stages),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutStep:
    """A step in layers.

    Attributes:
        layers: The layers.
        options: What is searched.
        offload: Whether state stays in the memory of hosts; None: where nothing fits without.
    """

    layers: Layering
    options: SearchOptions
    offload: bool | None


class _Searched(Protocol):
    """Plans a step with state in the memory of hosts or not.

    It asks whether its error is to say what would help, and may be told of a pipeline that is to be
    beaten.
    """

    def __call__(
        self,
        step: _CutStep,
        offload: bool,
        seeks_remedies: Callable[[], bool],
        beats: PlannedPipeline | None = None,
        /,
    ) -> PlannedPipeline: ...


def _cut(
    opened: OpenStep,
    request: PipelineRequest,
    report: Callable[[str], object],
    pins: Sequence[PipelinePin],
    cut: _Cut = None,
) -> _CutStep:
    layers, flop = layering_of(
        opened,
        cut or _wanted_layers(request),
        request.statistics,
        request.num_stages or 1,
        partial(_check_pins, pins, request.cluster, request.num_stages or 0),
    )
    for note in layers.ends.notes if layers.ends else ():
        report(note)
    report(
        f"{counted(len(layers.classes), 'layer')} of {counted(len(set(layers.classes)), 'kind')}"
    )
    return _CutStep(
        layers=layers,
        options=search_options(layers, flop, request),
        offload=layers_offload(layers, request.offload, request.cluster.slowest().device),
    )


def _wanted_layers(request: PipelineRequest) -> _Cut:
    if request.placement is None:
        return request.num_layers
    cuts = request.placement.plan.cuts

    def as_before(chain: OperatorChain) -> Ranges:
        if cuts[-1][1] + 1 != chain.num_operators:
            raise PlanError("for these shapes the forward pass has other operators")
        return cuts

    return as_before


def _fastest(
    opened: OpenStep,
    request: PipelineRequest,
    report: Callable[[str], object],
    pins: Sequence[PipelinePin],
    searched: _Searched,
) -> PlannedPipeline:
    """Return the fastest pipeline of a step; where nothing fits, of what holds less.

    Larger layers hold less where the backward pass computes all again from what enters a layer.
    Attention as one operator, whose keys may go round, holds less; so does state in the memory of
    hosts.  They are tried in this order where nothing else fits.  Attention is tried first of all
    where its scores take much of the step, or where the batch has fewer rows than there are
    devices; with more rows it is better to split rows.  Where scores take much, and attention as
    one operator fits and has no more work, the step as it is written is not searched
    (`_is_better`).  Only where all that fails does the error say what would help.

    Args:
        opened: The step.
        request: What is asked.
        report: Is told of progress.
        pins: What is fixed.
        searched: Plans a step with state in the memory of hosts or not; asks whether its error is
            to say what would help.

    Raises:
        InfeasibleError: nothing fits.
    """
    plain = _cut(opened, request, report, pins)

    @cache
    def joined() -> _CutStep | None:
        step = with_attention(opened) if request.placement is None else None
        if step is None:
            return None
        report("with attention as one operator")
        return _cut(step, request, report, pins)

    @cache
    def offloaded() -> PlannedPipeline | None:
        for step in (plain, joined()):
            # Layers are measured in one process at a time.
            if step is not None and step.offload is None and request.measure is False:
                report(f"again {ALL_IN_HOST}")
                with suppress(InfeasibleError, PlanError, TraceError):
                    found = searched(step, True, never)
                    return found if step is plain else _joined(found)
        return None

    is_long = layers_have_long_attention(plain.layers, plain.options.step_flop, request.cluster)
    has_few_rows = plain.layers.batch_size < request.cluster.num_devices
    first = _first(joined, searched) if is_long or has_few_rows else None
    is_asked = bool(pins) or request.measure is not False
    if (
        first is not None
        and is_long
        and not is_asked
        and _is_better(first, joined(), plain, request.cluster)
    ):
        return first
    if first is not None and (is_long or _has_ring(first)):
        report("with attention as it is written")
        with suppress(InfeasibleError):
            return searched(plain, bool(plain.offload), never, first)
        return first
    try:
        return searched(
            plain, bool(plain.offload), lambda: joined() is None and offloaded() is None
        )
    except NoSuchPlanError:
        raise
    except InfeasibleError as error:
        cut = partial(_cut, opened, request, report, pins)
        larger = _in_larger_layers(error, request, plain, cut, searched)
        other = larger or _in_less_memory(joined, offloaded, searched)
        if other is None:
            raise
        return other


def _in_less_memory(
    joined: Callable[[], _CutStep | None],
    offloaded: Callable[[], PlannedPipeline | None],
    searched: _Searched,
) -> PlannedPipeline | None:
    """Return a pipeline with attention as one operator, or else with state in the hosts.

    Raises:
        InfeasibleError: nothing fits with attention as one operator, either.
    """
    step = joined()
    if step is None:
        return offloaded()
    try:
        return _joined(searched(step, bool(step.offload), lambda: offloaded() is None))
    except TraceError:
        # Its rows may be those of the batch, which are cut into micro-batches.
        return offloaded()
    except InfeasibleError:
        other = offloaded()
        if other is None:
            raise
        return other


def _first(joined: Callable[[], _CutStep | None], searched: _Searched) -> PlannedPipeline | None:
    """Return a pipeline with attention as one operator; None if it cannot be planned.

    The search with attention as it is written raises the errors in what was asked.
    """
    with suppress(MeshwiseError):
        step = joined()
        return None if step is None else _joined(searched(step, bool(step.offload), never))
    return None


def _is_better(
    found: PlannedPipeline, joined: _CutStep | None, plain: _CutStep, cluster: ClusterSpec
) -> bool:
    """Return whether no plan of a step as it is written is expected to be faster.

    Attention as one operator can be split in as many ways.  So it is better if all layers take no
    more time on one device, if it allows as many micro-batches, and if no scores are computed that
    the mask hides: one device leaves them out.
    """
    assert joined is not None  # it was planned
    if any(computes_hidden_scores(*decided) for decided in _decided(found)):
        return False
    joined_s, plain_s = (least_work_s(x.layers, cluster, x.options) for x in (joined, plain))
    most = max(microbatch_counts(joined.options))
    return joined_s <= plain_s < math.inf and joined.layers.separates(most)


def _in_larger_layers(
    error: InfeasibleError,
    request: PipelineRequest,
    plain: _CutStep,
    cut: Callable[[_Cut], _CutStep],
    searched: _Searched,
) -> PlannedPipeline | None:
    """Return a pipeline of clearly fewer layers; None if not even that fits, or hardly could."""
    has = request.memory_bytes or request.cluster.slowest().device.memory_bytes
    is_near = isinstance(error, NamedMemoryError) and error.num_bytes < _NEARLY * has
    # Pins name layers by number; a plan that is followed says how layers are cut.
    is_fixed = request.num_layers is not None or request.placement is not None or request.pins
    if is_fixed or not is_near or "full" not in request.remats:
        return None
    count = len(plain.layers.classes)
    step = cut(lambda chain: regular_layers(chain, max(1, int(_FEWER * count))).ranges)
    if (request.num_stages or 1) <= len(step.layers.classes) < count:
        with suppress(InfeasibleError):
            return searched(step, bool(step.offload), never)
    return None


def _joined(planned: PlannedPipeline) -> PlannedPipeline:
    """Return the same, with a plan that says that attention is one operator."""
    return replace(planned, plan=replace(planned.plan, joins_attention=True))


def _has_ring(planned: PlannedPipeline) -> bool:
    """Return whether keys go round in any layer."""
    return any(has_ring(*decided) for decided in _decided(planned))


def _decided(planned: PlannedPipeline) -> Iterator[tuple[Graph, GraphDecision, tuple[int, ...]]]:
    """Yield the graph of each layer, its decision, and the sizes of the axes of its mesh."""
    plan, count = planned.plan, planned.plan.num_microbatches
    for stage, decisions in zip(plan.stages, planned.decisions, strict=True):
        for layer, decision in zip(stage.layers, decisions, strict=True):
            piece = planned.layers.graph(layer.equal_to, layer.equal_to, count, stage.remat)
            yield piece.graph, decision, stage.mesh.sizes


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
        intra=IntraOptions(
            time_limit_s=request.time_limit_s, seed=request.seed, rows_first=not request.pins
        ),
    )


def _asked(request: PipelineRequest) -> Iterator[PipelinePin]:
    """Yield what is asked for beside the pins, which may contradict it."""
    if request.num_stages is not None:
        yield PipelinePin(text=f"num_stages={request.num_stages}", num_stages=request.num_stages)
    if request.num_microbatches is not None:
        counts = request.num_microbatches
        yield PipelinePin(text=f"num_microbatches={','.join(map(str, counts))}", counts=counts)
