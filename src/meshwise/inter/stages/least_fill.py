"""G of `bottleneck_search`: the stages of least fill within limits of load and once.

A relaxation comes first: the cheapest way through (layer, device) without regard to how many stages
follow, which memory depends on, and with the cheapest right neighbour of each stage.  It is a lower
bound at every state (`cost_to_end`), and only states that it does not rule out are visited by the
exact recurrence (`cheapest_stages`).

With a fixed number n of stages every stage pays a toll, and n tolls are taken off at the end: for n
stages nothing changes, and the right toll makes the relaxation want n stages by itself (Lagrange
relaxation; every toll gives a valid bound).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwise.inter.stages.bottleneck_search import FoundStages
from meshwise.inter.stages.kernels.stage_arrays import Devices, FillBounds, Limits
from meshwise.inter.stages.kernels.stage_kernels import (
    cheapest_stages,
    cost_to_end,
    least_fill_of_groups,
    stages_of_bound,
)
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_options import StageOptions, devices_of
from meshwise.inter.stages.stage_problem import StageProblem, StageSpan
from meshwise.kernels.arrays import Floats

# How far above the lower bound solutions are looked for, one step after the other: the nearer, the
# fewer states are visited.
_STEPS = (1e-9, 2e-3, 2e-2, 0.2)
# Tolls that are tried at most, each twice the last or in the middle of two.
_MOST_TOLLS = 14


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """A relaxation: costs of groups with the toll, costs to the end, the bound without tolls."""

    toll: float
    cost: Floats
    to_end: Floats
    bound_s: float


def least_fill(
    problem: StageProblem, options: StageOptions, load: float, once: float, cutoff: float
) -> FoundStages | None:
    """Stages of least fill and transfers within limits, if that is below the cutoff.

    Args:
        problem: What is to be cut.
        options: Its possible stages.
        load: What a stage may add to the steady state.
        once: Its time once a step at most.
        cutoff: Above this no solution is wanted.
    """
    # Whole numbers would make the kernels be compiled anew.
    load, once = float(load), float(once)
    table, num_stages = options.options, options.num_stages
    cost, least_to_end = least_fill_of_groups(table, load, once)
    if least_to_end[0] > len(least_to_end):
        return None
    has_option = np.zeros(len(problem.costs.submeshes), np.bool_)
    has_option[table.kind[np.isfinite(cost)]] = True
    devices, unit = devices_of(options, has_option)
    bound = _bound(options, cost, devices, 0.0)
    if num_stages and bound.bound_s < cutoff:
        bound = _with_best_toll(options, devices, bound, cutoff)
    if not bound.bound_s < cutoff:
        return None
    tolls = num_stages * bound.toll
    for limit in (*(min(cutoff, bound.bound_s * (1 + s)) for s in _STEPS), cutoff):
        value, way = cheapest_stages(
            table,
            devices,
            FillBounds(bound.cost, bound.to_end),
            Limits(load, once, bound.toll),
            # The bound and the stages add the tolls in another order.
            limit + tolls + 1e-12 * abs(tolls),
            num_stages,
        )
        if math.isfinite(value):
            return _found(problem, options, [(int(o), int(p) * unit) for o, p in way])
        if limit == cutoff:
            break
    return None


def _bound(options: StageOptions, cost: Floats, devices: Devices, toll: float) -> _Bound:
    with_toll = cost + toll
    to_end = cost_to_end(options.options, with_toll, devices)
    return _Bound(toll, with_toll, to_end, float(to_end[0, 0]) - options.num_stages * toll)


def _with_best_toll(options: StageOptions, devices: Devices, free: _Bound, cutoff: float) -> _Bound:
    """The relaxation of the best bound; the bound is concave in the toll.

    The number of stages falls as the toll rises, so it tells on which side the best toll lies.
    """
    wanted, best = options.num_stages, free
    low, high = -math.inf, math.inf
    toll, step = 0.0, max(free.bound_s, 1e-12) / (4 * wanted)
    for tried in range(_MOST_TOLLS):
        bound = free if tried == 0 else _bound(options, free.cost, devices, toll)
        best = bound if bound.bound_s > best.bound_s else best
        count = int(stages_of_bound(options.options, bound.cost, bound.to_end, devices))
        if count == wanted or best.bound_s >= cutoff:
            break
        if count > wanted:
            low = toll
            toll = toll + step if math.isinf(high) else (low + high) / 2
        else:
            high = toll
            toll = toll - step if math.isinf(low) else (low + high) / 2
        step *= 2
    return best


def _found(problem: StageProblem, options: StageOptions, way: list[tuple[int, int]]) -> FoundStages:
    stages = tuple(
        StageSpan(
            first_layer=int(options.where[o, 0]),
            last_layer=int(options.where[o, 1]),
            submesh=int(options.where[o, 2]),
            variant=int(options.where[o, 3]),
            first_device=first_device,
        )
        for o, first_device in way
    )
    time = step_time(problem, stages)
    return FoundStages(
        fill_s=time.fill_s + time.transfer_s,
        load_s=time.steady_s,
        once_s=time.once_s,
        total_s=time.total_s,
        stages=stages,
    )
