"""Which pins contradict each other: a smallest set without which the others have a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import TraceError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.search_space import (
    SearchOptions,
    asked_submeshes,
    guessed_s,
    stage_problem,
    variants_of,
)
from meshwise.inter.search.stage_pins import masked
from meshwise.inter.stages.directions import mirrored
from meshwise.inter.stages.stage_construction import feasible_stages
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem, StageSpan
from meshwise.inter.stages.stage_refusal import what_is_in_the_way
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.intra.limit.refusal import NoSuchPlanError

T = TypeVar("T")


def smallest_conflict(
    pins: Sequence[T], is_feasible: Callable[[Sequence[T]], bool]
) -> tuple[T, ...]:
    """Pins that contradict each other, none of which can be left out (a deletion filter).

    Args:
        pins: All pins, that together have no plan.
        is_feasible: Whether some of them have one; with fewer pins it does not become false.

    Returns:
        The pins; none if there is no plan even without pins.
    """
    kept = list(pins)
    for pin in pins:
        fewer = [p for p in kept if p is not pin]
        if not is_feasible(fewer):
            kept = fewer
    return tuple(kept)


def some_stages(problem: StageProblem, num_stages: int | None) -> tuple[StageSpan, ...]:
    """Some stages, in either direction of the cluster; none if there are none."""
    found = feasible_stages(problem, num_stages)
    if not found and any(m.starts is not None for m in problem.costs.submeshes):
        return feasible_stages(mirrored(problem), num_stages)
    return found


def fits_without_costs(
    cluster: ClusterSpec, options: SearchOptions, num_layers: int, num_microbatches: int
) -> bool:
    """Whether stages could be cut as the pins say if they took no memory: nothing is planned.

    Args:
        cluster: Where they would run.
        options: With the pins.
        num_layers: L.
        num_microbatches: B.
    """
    return any(
        some_stages(problem, options.num_stages)
        for problem in _free_problems(cluster, options, num_layers, num_microbatches)
    )


def check_stages(cluster: ClusterSpec, options: SearchOptions, num_layers: int) -> None:
    """Check that stages of some layers could be cut and placed if they took no memory.

    Args:
        cluster: Where they would run.
        options: What is searched.
        num_layers: L.

    Raises:
        NoSuchPlanError: they could not; it says what is in the way.
    """
    num_microbatches = microbatch_counts(options)[0]
    problems = _free_problems(cluster, options, num_layers, num_microbatches)
    if any(_has_one_stage(problem, options.num_stages) for problem in problems):
        return
    if not any(some_stages(problem, options.num_stages) for problem in problems):
        raise NoSuchPlanError(what_is_in_the_way(problems[0], options.num_stages, some_stages))


def _has_one_stage(problem: StageProblem, num_stages: int | None) -> bool:
    """Return whether one stage of all layers on all devices is a solution."""
    kinds = [m.num_devices == problem.num_devices for m in problem.costs.submeshes]
    schedule = problem.schedule
    is_allowed = (
        num_stages in (None, 1)
        and schedule.allows(1, problem.num_microbatches)
        and problem.costs.num_layers >= schedule.chunks
    )
    return is_allowed and bool(np.isfinite(problem.costs.microbatch_s[0, -1, kinds]).any())


def _free_problems(
    cluster: ClusterSpec, options: SearchOptions, num_layers: int, num_microbatches: int
) -> list[StageProblem]:
    """For each schedule the problem in which every stage takes a second and no memory."""
    kinds, submeshes = asked_submeshes(cluster, replace(options, places=False))
    variants = [variants_of(kind, replace(options, prices=(0.0,)), 1.0) for kind in kinds]
    costs = masked(_free(submeshes, variants, num_layers), options.pins, kinds, variants)
    return [
        stage_problem(costs, cluster, options, num_microbatches, schedule, None)
        for schedule in options.schedules
    ]


def fits(
    cluster: ClusterSpec, options: SearchOptions, costs: VariantCosts, counts: Sequence[int]
) -> bool:
    """Whether there is a plan at one of some numbers of micro-batches.

    Args:
        cluster: Where it would run.
        options: With the pins.
        costs: Plans of layers.
        counts: Values of B.
    """
    kinds, submeshes = asked_submeshes(cluster, replace(options, places=False))
    second = guessed_s(kinds, cluster, options)
    variants = [variants_of(kind, options, second) for kind in kinds]
    for count in counts:
        try:
            table = LazyTable(
                costs,
                submeshes,
                variants,
                count,
                bounds_of=count,
                is_cautious=True,
                report=lambda _: None,
            )
        except TraceError:
            # The step does not separate so far.
            continue
        for schedule in options.schedules:
            while True:
                known = masked(table.costs(), options.pins, kinds, variants)
                problem = stage_problem(known, cluster, options, count, schedule, None)
                stages = some_stages(problem, options.num_stages)
                if not table.plan(stages, cluster.num_devices, math.inf):
                    break
            if stages:
                return True
    return False


def _free(
    submeshes: Sequence[StageSubmesh], variants: Sequence[Sequence[Variant]], num_layers: int
) -> StageCosts:
    """Every stage takes a second and no memory."""
    shape = (num_layers, num_layers, len(submeshes), max(map(len, variants)))
    first, last, kind, variant = np.indices(shape)
    count = np.array([len(ways) for ways in variants])
    exists = (last >= first) & (variant < count[kind])
    nothing = np.zeros(shape)
    return StageCosts(
        submeshes=tuple(submeshes),
        microbatch_s=np.where(exists, 1.0, np.inf),
        once_s=nothing,
        resident_bytes=nothing,
        microbatch_bytes=nothing,
        temporary_bytes=nothing,
    )
