"""The fastest pipeline of schedules that one search chooses from, simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.finishing import NamedLayers, finished
from meshwise.inter.search.interleaving import interleaved_pipelines
from meshwise.inter.search.replanning import replanned
from meshwise.inter.search.search import FoundPipeline, NothingFasterError, stage_decisions
from meshwise.inter.search.unsearched_memory import UnsearchedMemoryError
from meshwise.inter.stages.objective import busy_s
from meshwise.inter.stages.stage_problem import memory_bytes
from meshwise.intra.plan_graph import relative_gap
from meshwise.plan.plan import Plan
from meshwise.planner.pinned_search import PipelineSearch, never, pinned_search
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.simulate.simulated_plan import SimulatedPlan
from meshwise.units import counted


class _HasPlan(Protocol):
    @property
    def plan(self) -> Plan: ...


_Planned = TypeVar("_Planned", bound=_HasPlan)
# Of the memory, what is left free at least for what the search does not count.
LEAST_RESERVED = 0.01
# The largest number of times that stages are planned again, with more memory left free each time.
_MOST_REPLANNED = 3
# After so many pipelines of several stages a mesh that find no room, more memory is left free.
_MOST_FAILED = 4
# If the simulated step takes so many times what the formula says, more plans are simulated.
_FAR = 1.2


def planned_together(asked: PipelineSearch) -> PlannedPipeline | None:
    """Find the fastest pipeline of schedules that one search chooses from, and simulate it.

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


def simulated(plan: Plan) -> SimulatedPlan:
    """Return the numbers of a plan that are compared."""
    return SimulatedPlan(
        schedule=plan.schedule_choice,
        num_stages=len(plan.stages),
        num_microbatches=plan.num_microbatches,
        step_time_s=plan.step_time_s,
        formula_s=plan.formula_s,
    )


def found_one(found: PlannedPipeline | None) -> PlannedPipeline:
    """Return what was found.

    Raises:
        NothingFasterError: nothing that takes less than the cutoff was.
    """
    if found is None:
        raise NothingFasterError("no pipeline is faster")
    return found


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
    return with_faster_stages(found, costs, partial(_planned, asked, source, costs), asked.report)


def with_faster_stages(
    found: FoundPipeline,
    costs: VariantCosts,
    planned: Callable[[FoundPipeline], _Planned],
    report: Callable[[str], object],
) -> _Planned:
    """Return the faster of a pipeline and of the one whose stages are planned again.

    Args:
        found: What the search found.
        costs: Its plans of layers.
        planned: Makes the plan of a pipeline, and simulates it.
        report: Is told of progress.

    Raises:
        UnsearchedMemoryError: there is no room for what was found; its stages are not planned
            again.
    """
    first = planned(found)
    apart = found.problem.schedule.splits_backward
    free_share = _uncounted_share(found, first.plan) if apart else 0.0
    for _ in range(_MOST_REPLANNED):
        better = replanned(found, costs, report, free_share=free_share)
        if better is found:
            break
        try:
            return min(planned(better), first, key=lambda made: made.plan.step_time_s)
        except UnsearchedMemoryError as error:
            free_share += max(error.missing_share, LEAST_RESERVED)
            report(f"{error}; stages with {free_share:.1%} of their memory left free")
    return first


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
    asked: PipelineSearch, source: NamedLayers, costs: VariantCosts, found: FoundPipeline
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
    asked.simulated.append(simulated(plan))
    decisions = stage_decisions(found, costs)
    return PlannedPipeline(
        layers=layers,
        plan=plan,
        timeline=timeline,
        decisions=decisions,
        is_tight=found.is_tight,
    )


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
    fastest, tried = _Fastest(below_s=asked.cutoff_s), dict[int, float]()
    pipelines = interleaved_pipelines(
        asked.cluster,
        options,
        options.schedules[0],
        asked.plans.findings(costs, asked.cluster.num_devices),
        asked.report,
        below_s=lambda: fastest.below_s,
        seeks_remedies=asked.seeks_remedies,
        tried=tried,
    )
    with closing(pipelines):
        _simulate(asked, pipelines, costs, fastest)
    if fastest.planned is None and fastest.failed:
        # The fastest one says how much is missing.
        first = min(fastest.failed, key=lambda error: error.least_s)
        first.spare_share = min(error.spare_share for error in fastest.failed)
        raise first
    planned = fastest.planned
    if planned is None:
        return None
    return replace(planned, plan=replace(planned.plan, tried=tuple(sorted(tried.items()))))


def _simulate(
    asked: PipelineSearch,
    pipelines: Iterable[FoundPipeline],
    costs: VariantCosts,
    fastest: _Fastest,
) -> None:
    """Plan and simulate pipelines, and note the fastest."""
    for found in pipelines:
        try:
            made = _planned(asked, asked.layers, costs, found)
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
