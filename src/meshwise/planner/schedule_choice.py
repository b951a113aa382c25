"""The fastest pipeline for given layers, simulated: search after search, all schedules together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, MeshwiseError, PlanError
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.second_process import second_process_of
from meshwise.inter.cost_table.variant_costs import LayerTimes
from meshwise.inter.search.search_space import SearchOptions
from meshwise.plan.plan import Plan
from meshwise.planner.one_search import found_one, simulated
from meshwise.planner.pinned_search import HOPELESS, PipelineSearch, always, never
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.room import with_room
from meshwise.planner.shared_plans import SharedPlans
from meshwise.request.pipeline_pins import PipelinePin
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import searched_together
from meshwise.simulate.simulated_plan import best_by_schedule
from meshwise.trace.layers.layering import Layering

# If a larger share of the memory must be left free, 1F1B with delays is not searched first.
_LITTLE = 0.05
# Step times that differ by less are equal but for rounding.
_SAME = 1e-9


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
    beats: PlannedPipeline | None = None,
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
        beats: A pipeline of other layers that is to be beaten; None: there is none.

    Raises:
        InfeasibleError: nothing fits, or nothing is faster.
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
    if beats is not None:
        asked = _beating(asked, beats, beats.plan.step_time_s * (1 - _SAME))
    _, costs = asked.plans.of({})
    # One second process for all searches: it keeps what it built.
    with second_process_of(costs):
        return _searched(asked)


def _searched(asked: PipelineSearch) -> PlannedPipeline:
    """Search one group of schedules after the other; return the fastest pipeline by simulation."""
    options, report = asked.options, asked.report
    groups = searched_together(options.schedules)
    if len(groups) == 1 or any(pin.schedule for pin in asked.pins):
        return _with_simulated(found_one(with_room(asked)), asked)
    beats_other = math.isfinite(asked.cutoff_s)
    best = None if beats_other else _promising(asked, groups)
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
        some = asked if best is None else _beating(asked, best, _less_than(best.plan, group))
        some = replace(
            some,
            options=replace(options, schedules=group),
            seeks_remedies=never if best or is_plain in failed else asked.seeks_remedies,
        )
        try:
            found = with_room(some)
        except (InfeasibleError, PlanError) as error:
            report(f"{names}: {str(error).removeprefix(f'{names}: ')}")
            failed.setdefault(is_plain, error)
            least_fails |= ONE_F_ONE_B in group and isinstance(error, InfeasibleError)
            continue
        if found is not None and found.plan.step_time_s < some.cutoff_s:
            best = found
    if best is None and not beats_other:
        raise failed.get(True) or failed[False]
    best = found_one(best)
    every = ", ".join(schedule.choice for schedule in options.schedules)
    space = (
        f"{best.plan.space}; the schedules {every} were all searched, and the fastest plan by "
        "simulation was taken"
    )
    return _with_simulated(replace(best, plan=replace(best.plan, space=space)), asked)


def _promising(
    asked: PipelineSearch, groups: list[tuple[PipelineSchedule, ...]]
) -> PlannedPipeline | None:
    """Search 1F1B with delays, the fastest most often, before others, which then have more to beat.

    Where more than `_LITTLE` of the memory must be left free, or one stage is the best, such a step
    would keep the search for 1F1B from a faster one.  Then nothing is taken; only time is lost.

    Args:
        asked: What is searched.
        groups: Schedules that are searched together; the group that is searched here is removed.
    """
    group = next((g for g in groups if g[0].delays_weights and g[0].name == ONE_F_ONE_B.name), None)
    if group is None:
        return None
    asked.report(_names(group))
    some = replace(
        asked,
        options=replace(asked.options, schedules=group),
        seeks_remedies=never,
        most_reserved=_LITTLE,
        looks_further=False,
        simulated=[],
    )
    try:
        found = with_room(some)
    except (InfeasibleError, PlanError):
        found = None
    if found is None or len(found.plan.stages) == 1:
        asked.report(f"{_names(group)}: again after the others")
        return None
    groups.remove(group)
    asked.simulated.extend(some.simulated)
    return found


def _beating(asked: PipelineSearch, best: PlannedPipeline, cutoff_s: float) -> PipelineSearch:
    """Return the same search for steps of less than `cutoff_s`, with a pipeline to be beaten."""
    return replace(
        asked,
        cutoff_s=cutoff_s,
        # The more of what formula and simulation say.
        far_s=HOPELESS * max(best.plan.formula_s, best.plan.step_time_s),
        down_to=best.plan.num_microbatches,
        beats_tight=best.is_tight,
    )


def _less_than(plan: Plan, schedules: Sequence[PipelineSchedule]) -> float:
    """Return the seconds of a step below which a plan under other schedules is preferred.

    Of equals the first is taken, but one without gradients of weights apart before one with delays.
    """
    is_simpler = bool(plan.delays) and not schedules[0].splits_backward
    return plan.step_time_s * (1 + _SAME if is_simpler else 1 - _SAME)


def _names(schedules: Sequence[PipelineSchedule]) -> str:
    """Return the names of schedules that are searched together, for display."""
    names = ", ".join(schedule.choice for schedule in schedules)
    return f"{'schedule' if len(schedules) == 1 else 'schedules'} {names}"


def _with_simulated(found: PlannedPipeline, asked: PipelineSearch) -> PlannedPipeline:
    """Return what was found, and beside it the best of each schedule."""
    every = [simulated(found.plan), *asked.simulated]
    return replace(found, simulated=best_by_schedule(every))
