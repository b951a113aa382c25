"""The fastest pipeline for given layers, simulated: search after search, all schedules together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, MeshwiseError, PlanError
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.second_process import second_process_of
from meshwise.inter.cost_table.variant_costs import LayerTimes, VariantCosts
from meshwise.inter.search.finishing import NamedLayers, finished
from meshwise.inter.search.interleaving import interleaved_pipelines
from meshwise.inter.search.least_memory import least_memory, no_pipeline_fits
from meshwise.inter.search.remedies import least_memory_counts
from meshwise.inter.search.replanning import replanned
from meshwise.inter.search.search import FoundPipeline, NothingFasterError, stage_decisions
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.search.unsearched_memory import NamedMemoryError, UnsearchedMemoryError
from meshwise.inter.stages.objective import busy_s
from meshwise.inter.stages.stage_problem import memory_bytes
from meshwise.intra.limit.refusal import NoSuchPlanError
from meshwise.intra.plan_graph import relative_gap
from meshwise.plan.decision import GraphDecision
from meshwise.plan.places import device_memory_bytes
from meshwise.plan.plan import Plan
from meshwise.plan.text.device_memory import plan_memory
from meshwise.planner.memory_share import limited_plan
from meshwise.planner.pinned_search import PipelineSearch, always, never, pinned_search
from meshwise.planner.shared_plans import SharedPlans
from meshwise.request.pipeline_pins import PipelinePin
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import searched_together
from meshwise.simulate.simulated_plan import SimulatedPlan, best_by_schedule
from meshwise.simulate.timeline import Timeline
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import OpenStep
from meshwise.units import bytes_text, counted

# Of the memory, left free for what the search does not count: beyond it others are better.
_LEAST_RESERVED, _MOST_RESERVED = 0.01, 0.5
# The largest number of times that stages are planned again, with more memory left free each time.
_MOST_REPLANNED = 3
# Where a step would take so many times what is to be beaten if there were room for it, none that
# needs less is searched.
_HOPELESS = 1.02
# After so many pipelines of several stages a mesh that find no room, more memory is left free.
_MOST_FAILED = 4
# If the simulated step takes so many times what the formula says, more plans are simulated.
_FAR = 1.2
# Step times that differ by less are equal but for rounding.
_SAME = 1e-9
# To say how much memory suffices so many amounts are tried, each more than the last by this part.
_MOST_TRIES, _MORE = 12, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A pipeline that was found.

    Attributes:
        layers: The layers of the step.
        plan: Its stages.
        timeline: A simulated step.
        decisions: For each stage the plans of its layers.
        simulated: The best of each schedule that was simulated, fastest first.
    """

    layers: Layering
    plan: Plan
    timeline: Timeline
    decisions: tuple[tuple[GraphDecision, ...], ...]
    simulated: tuple[SimulatedPlan, ...] = ()

    @property
    def user(self) -> OpenStep:
        """The user's step."""
        assert self.layers.ends is not None
        return self.layers.ends.original


def planned_layers(
    layers: Layering,
    cluster: ClusterSpec,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    pins: Sequence[PipelinePin] = (),
    times: LayerTimes | None = None,
    records: LayerRecords | None = None,
    *,
    seeks_remedies: Callable[[], bool] = always,
) -> PlannedPipeline:
    """Find the fastest pipeline for given layers, and simulate it.

    Args:
        layers: The layers.
        cluster: Where they run.
        options: What is searched, pins apart.
        report: Is told of progress.
        pins: What is fixed.
        times: Tells how long planned layers take; None: the model does.
        records: What was found out about layers before; None: nothing.
        seeks_remedies: Whether the error says, where nothing fits, with what something would; asked
            when nothing does.

    Raises:
        InfeasibleError: nothing fits.
        PlanError: a number of micro-batches does not divide the batch, or pins contradict each
            other, the cluster or its memory.
        PinError: a pin names nothing.
    """
    asked = PipelineSearch(
        layers=layers,
        cluster=cluster,
        options=options,
        report=report,
        pins=pins,
        plans=SharedPlans(layers, options.intra, times, records),
        seeks_remedies=seeks_remedies,
    )
    _, costs = asked.plans.of({})
    # One second process for all searches: it keeps what it built.
    with second_process_of(costs):
        return _searched(asked)


def _searched(asked: PipelineSearch) -> PlannedPipeline:
    """`planned_layers`, with all that is asked."""
    options, report = asked.options, asked.report
    groups = searched_together(options.schedules)
    if len(groups) == 1 or any(pin.schedule for pin in asked.pins):
        return _with_simulated(_one(_with_room(asked)), asked)
    best: PlannedPipeline | None = None
    # By whether each mesh has one stage.
    failed: dict[bool, MeshwiseError] = {}
    least_fails = False
    for group in groups:
        names = _names(group)
        is_plain = group[0].chunks == 1
        if is_plain and least_fails:
            report(f"{names}: passed over, since 1f1b holds no more and does not fit")
            continue
        report(names)
        # Of equals the first is taken.
        cutoff_s = math.inf if best is None else best.plan.step_time_s * (1 - _SAME)
        some = replace(
            asked,
            options=replace(options, schedules=group),
            cutoff_s=cutoff_s,
            seeks_remedies=never if best or is_plain in failed else asked.seeks_remedies,
        )
        try:
            found = _with_room(some)
        except (InfeasibleError, PlanError) as error:
            report(f"{names}: {str(error).removeprefix(f'{names}: ')}")
            failed.setdefault(is_plain, error)
            least_fails |= ONE_F_ONE_B in group and isinstance(error, InfeasibleError)
            continue
        if found is not None and found.plan.step_time_s < cutoff_s:
            best = found
    if best is None:
        raise failed.get(True) or failed[False]
    every = ", ".join(schedule.choice for schedule in options.schedules)
    space = (
        f"{best.plan.space}; the schedules {every} were all searched, and the fastest plan by "
        "simulation was taken"
    )
    return _with_simulated(replace(best, plan=replace(best.plan, space=space)), asked)


def _names(schedules: Sequence[PipelineSchedule]) -> str:
    """Return the names of schedules that are searched together, for display."""
    names = ", ".join(schedule.choice for schedule in schedules)
    return f"{'schedule' if len(schedules) == 1 else 'schedules'} {names}"


def _with_simulated(found: PlannedPipeline, asked: PipelineSearch) -> PlannedPipeline:
    """Return what was found, and beside it the best of each schedule."""
    simulated = best_by_schedule([_simulated(found.plan), *asked.simulated])
    return replace(found, simulated=simulated)


def _simulated(plan: Plan) -> SimulatedPlan:
    """Return the numbers of a plan that are compared."""
    return SimulatedPlan(
        schedule=plan.schedule_choice,
        num_stages=len(plan.stages),
        num_microbatches=plan.num_microbatches,
        step_time_s=plan.step_time_s,
        formula_s=plan.formula_s,
    )


def _one(found: PlannedPipeline | None) -> PlannedPipeline:
    """Return what was found where nothing was to be beaten."""
    assert found is not None
    return found


def _with_room(asked: PipelineSearch) -> PlannedPipeline | None:
    """Plan with `_with_some_room`; where nothing fits, name memory that is enough in the error.

    What the search does not count needs room too.  So the memory in the error is one with which a
    plan was really made; if that plan holds no more than there is, it is returned.
    """
    try:
        return _with_some_room(asked)
    except (InfeasibleError, PlanError) as error:
        named = _named_memory(error)
        is_memory = isinstance(error, InfeasibleError) and not isinstance(error, NoSuchPlanError)
        can_name = is_memory and not asked.pins
        if (named is None and not can_name) or not asked.seeks_remedies():
            raise
        found = _with_more_memory(asked, None if named is None else named.num_bytes)
        if found is None:
            if named is None:
                raise
            raise _reworded(error, named, named.text) from error
        enough, planned = found
        has, cluster = asked.options.memory_bytes, asked.cluster
        plan = limited_plan(planned.plan, lambda s: has or device_memory_bytes(s, cluster))
        if plan_memory(plan).fits:
            return replace(planned, plan=plan)
        if named is None:
            names = ", ".join(schedule.choice for schedule in asked.options.schedules)
            text = f"{no_pipeline_fits(asked.cluster, asked.options)} under schedule {names}"
            raise NamedMemoryError(text, enough) from error
        if enough == named.num_bytes:
            raise
        corrected = NamedMemoryError(named.text, enough)
        if error is named:
            raise corrected from error
        # What else the error says, as pins that are in the way, holds with this memory too.
        raise _reworded(error, named, str(corrected)) from error


def _named_memory(error: Exception) -> NamedMemoryError | None:
    """Return the error that names memory: this one, or its cause if the text repeats that."""
    for found in (error, error.__cause__):
        if isinstance(found, NamedMemoryError) and str(found) in str(error):
            return found
    return None


def _reworded(error: Exception, named: NamedMemoryError, text: str) -> MeshwiseError:
    """Return an error with another text in place of that which names memory."""
    kind = PlanError if isinstance(error, PlanError) else InfeasibleError
    return kind(str(error).replace(str(named), text))


def _with_more_memory(
    asked: PipelineSearch, num_bytes: int | None
) -> tuple[int, PlannedPipeline] | None:
    """Memory that is enough, and the pipeline planned with it; None if much more is needed.

    Args:
        asked: What is searched.
        num_bytes: Memory of a device with which a search finds something, if it is known.
    """
    options, (_, costs) = asked.options, asked.plans.of({})
    if num_bytes is None:  # there are no pins
        counts = least_memory_counts(options, asked.cluster.num_devices)
        least = least_memory(asked.cluster, options, costs, counts, asked.report)
        if least is None:
            return None
        num_bytes = max(least.num_bytes, (options.memory_bytes or 0) + 1)
    # What needs more memory than there is is not among what was compared.
    asked = replace(asked, seeks_remedies=never, simulated=[])
    for _ in range(_MOST_TRIES):
        asked.report(f"would it fit with {bytes_text(num_bytes)} a device?")
        more = replace(asked, options=replace(options, memory_bytes=num_bytes))
        try:
            return num_bytes, _one(_with_some_room(more))
        except (InfeasibleError, PlanError) as error:
            missing = error.missing_share if isinstance(error, UnsearchedMemoryError) else 0.0
            num_bytes = math.ceil(num_bytes * (1 + max(missing, _MORE)))
    return None


def _with_some_room(asked: PipelineSearch) -> PlannedPipeline | None:
    """`_planned_together` with room for what the search does not count.

    These are gradients of weights that wait, values of other layers that change their layout, and
    values that wait between layers.
    Where there is none the search is repeated with so much memory left free, at least twice as
    much as before, half of all at most; where nothing fits then, with amounts in between.

    Returns:
        None if no step of what was found, or would be found with room, takes less than the cutoff.
    """
    least = share = asked.options.reserved_share
    most = math.inf
    first: UnsearchedMemoryError | None = None
    while True:
        try:
            return _planned_together(asked)
        except UnsearchedMemoryError as error:
            if error.step_time_s > _HOPELESS * asked.cutoff_s:
                return None
            first, least, last = first or error, share, error
            more = max(error.missing_share, share, _LEAST_RESERVED)
            share = min(share + more, _MOST_RESERVED, (share + most) / 2)
        except (InfeasibleError, PlanError) as error:
            # What is left free is not the fault of a pin.
            if first is None:
                raise
            most, last = share, error
            share = (least + share) / 2
        if share - least < _LEAST_RESERVED or most - share < _LEAST_RESERVED:
            raise first from (None if last is first else last)
        asked.report(f"{last}; again with {share:.1%} of the memory left free")
        options = replace(asked.options, reserved_share=share)
        asked = replace(asked, options=options, seeks_remedies=never)


def _planned_together(asked: PipelineSearch) -> PlannedPipeline | None:
    """`planned_layers` for schedules that one search chooses from, with costs of other searches.

    Where the simulation says far more than the formula, as where all layers read a large value,
    other numbers of stages are tried, too: the formula does not price what is sent so.

    Returns:
        None if no schedule makes a step of what was found that takes less than the cutoff.
    """
    if asked.options.schedules[0].chunks > 1:
        return _interleaved(asked)
    planned = _planned_by_formula(asked)
    if planned is None or asked.pins or asked.options.num_stages is not None:
        return planned
    if planned.plan.step_time_s <= _FAR * planned.plan.formula_s:
        return planned
    asked.report(
        f"simulated, a step takes {planned.plan.step_time_s:.4g} s, by the formula "
        f"{planned.plan.formula_s:.4g} s: other numbers of stages"
    )
    first = planned.plan
    bound_s = first.formula_s * (1 - (first.gap or 0.0))
    most = min(asked.cluster.num_devices, len(asked.layers.classes))
    for num_stages in (2**k for k in range(most.bit_length()) if 2**k <= most):
        if num_stages == len(planned.plan.stages):
            continue
        other = replace(
            asked,
            options=replace(asked.options, num_stages=num_stages),
            cutoff_s=min(asked.cutoff_s, planned.plan.step_time_s),
            seeks_remedies=never,
        )
        with suppress(InfeasibleError, PlanError):
            found = _planned_by_formula(other)
            if found is not None and found.plan.step_time_s < planned.plan.step_time_s:
                planned = found
    space = (
        f"{first.space}; since simulation says far more than the formula, other plans of up to "
        f"{most} stages were simulated, too, and the fastest was taken"
    )
    gap = relative_gap(planned.plan.formula_s, bound_s)
    return replace(planned, plan=replace(planned.plan, space=space, gap=gap))


def _planned_by_formula(asked: PipelineSearch) -> PlannedPipeline | None:
    """Return the fastest by the formula of schedules that one search chooses from, simulated.

    Returns:
        None if it promises no less than the cutoff.
    """
    try:
        source, found, costs = pinned_search(asked)
    except NothingFasterError:
        return None
    if busy_s(found.problem, found.plan.stages) >= asked.cutoff_s:
        return None
    found = _with_space(asked, found)
    # Where there is no room for what was found, stages need not be planned again.
    planned = _planned(asked, source, found, costs)
    apart = found.problem.schedule.splits_backward
    free_share = _uncounted_share(found, planned.plan) if apart else 0.0
    for _ in range(_MOST_REPLANNED):
        better = replanned(found, costs, asked.report, free_share=free_share)
        if better is found:
            break
        try:
            again = _planned(asked, source, better, costs)
            return min(again, planned, key=lambda p: p.plan.step_time_s)
        except UnsearchedMemoryError as error:
            free_share += max(error.missing_share, _LEAST_RESERVED)
            asked.report(f"{error}; stages with {free_share:.1%} of their memory left free")
    return planned


def _uncounted_share(found: FoundPipeline, plan: Plan) -> float:
    """Return the share of its memory that a stage needs at most for gradients of weights that wait.

    The search did not count them, and stages that are planned again need about as much.
    """
    problem, spans = found.problem, found.plan.stages
    counted = [memory_bytes(problem, spans, k) for k in range(len(spans))]
    return max(
        max(0.0, stage.peak_bytes - num_bytes) / stage.memory_bytes
        for stage, num_bytes in zip(plan.stages, counted, strict=True)
    )


def _with_space(asked: PipelineSearch, found: FoundPipeline) -> FoundPipeline:
    """Return what was found, with words on what else was asked in the text of its space."""
    space = found.plan.space
    if asked.pins:
        space = f"{space}; pins {', '.join(pin.text for pin in asked.pins)}"
    if share := asked.options.reserved_share:
        space = f"{space}; {share:.1%} of the memory left free for what it does not count"
    if asked.plans.times is not None:
        space = f"{space}; layers that were planned are measured, others bounded by the model"
    whole = None if found.whole is None else _with_space(asked, found.whole)
    return replace(found, plan=replace(found.plan, space=space), whole=whole)


def _planned(
    asked: PipelineSearch, source: NamedLayers, found: FoundPipeline, costs: VariantCosts
) -> PlannedPipeline:
    """Return what was found as a plan that can be read, simulated and run."""
    layers = asked.layers
    plan, timeline = finished(
        source,
        asked.cluster,
        found,
        costs,
        batch_size=layers.batch_size,
        step_flop=asked.options.step_flop,
        transfers=asked.options.transfers,
        memory_bytes=asked.options.memory_bytes,
        tied=layers.tied_names(),
        cuts=layers.ranges,
        known=asked.plans.known,
    )
    asked.report(
        f"{plan.schedule_choice}, {counted(len(plan.stages), 'stage')}, "
        f"{counted(plan.num_microbatches, 'micro-batch')}: {plan.step_time_s:.4g} s a step "
        f"simulated, {plan.formula_s:.4g} s by the formula"
    )
    asked.simulated.append(_simulated(plan))
    decisions = stage_decisions(found, costs)
    return PlannedPipeline(layers=layers, plan=plan, timeline=timeline, decisions=decisions)


def _interleaved(asked: PipelineSearch) -> PlannedPipeline | None:
    """Return the fastest by simulation of pipelines with several stages a mesh.

    Returns:
        None if all promise no less than the cutoff.

    Raises:
        PlanError: pins or measured layers are asked for too.
    """
    if asked.pins or asked.plans.times is not None:
        texts = ", ".join(pin.text for pin in asked.pins)
        what = f"pins ({texts})" if asked.pins else "measured layers"
        raise PlanError(
            f"schedule {asked.options.schedules[0].name} does not go together with {what} yet; "
            "leave one of them out"
        )
    options = asked.options
    _, costs = asked.plans.of({})
    fastest = _Fastest(below_s=asked.cutoff_s)
    for found in interleaved_pipelines(
        asked.cluster,
        options,
        options.schedules[0],
        costs,
        asked.report,
        below_s=lambda: fastest.below_s,
        seeks_remedies=asked.seeks_remedies,
    ):
        try:
            made = _planned(asked, asked.layers, found, costs)
        except UnsearchedMemoryError as error:
            fastest.failed.append(error)
            if fastest.planned is None and len(fastest.failed) == _MOST_FAILED:
                break
            continue
        # The closed form is of equal stages; what is simulated is what is promised.
        seconds = made.timeline.step_time_s
        if seconds < fastest.below_s:
            fastest.below_s = seconds
            fastest.planned = replace(made, plan=replace(made.plan, gap=0.0))
    if fastest.planned is None and fastest.failed:
        raise fastest.failed[0]
    return fastest.planned


@dataclass(slots=True, kw_only=True)
class _Fastest:
    """The fastest pipeline so far.

    Attributes:
        below_s: Seconds of its simulated step, or of another one that is to be beaten.
        planned: The pipeline; None if there is none.
        failed: Why others have no room for what the search does not count.
    """

    below_s: float
    planned: PlannedPipeline | None = None
    failed: list[UnsearchedMemoryError] = field(default_factory=list[UnsearchedMemoryError])
