"""One search over micro-batches and schedules finds the best of searches for each alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages

import meshwise as mw
from inter.search.test_mixed_clusters import OPTIONS, Blocks, Formulas
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.search import search
from meshwise.inter.search.search_space import submeshes_of, variants_of
from meshwise.inter.stages.stage_problem import StageProblem, StageSpan
from meshwise.intra.options import IntraOptions
from meshwise.plan.stage import Remat
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.units import GIB

COUNTS = (8, 16, 32, 64)
CLUSTER = mw.Cluster.virtual("2x dgx-a100")
SCHEDULES = (ONE_F_ONE_B, EAGER, GPIPE)


def seconds(**changes: object) -> float:
    """Seconds of the best step; infinite if nothing fits."""
    options = replace(OPTIONS, **changes)
    try:
        found, _ = search(Blocks(), CLUSTER, options, costs=Formulas(Blocks(), IntraOptions()))
    except InfeasibleError:
        return math.inf
    assert found.plan.total_s == found.tried[found.problem.num_microbatches]
    return found.plan.total_s


# Where memory is large, and where few ways fit.
@pytest.mark.parametrize("memory_gib", [80, 16, 10])
def test_together_as_one_by_one(memory_gib: int) -> None:
    memory_bytes = memory_gib * GIB
    alone = [
        seconds(num_microbatches=(count,), schedules=(schedule,), memory_bytes=memory_bytes)
        for count in COUNTS
        for schedule in SCHEDULES
    ]
    # Else there is nothing to choose from.
    assert len({s for s in alone if s < math.inf}) > 2
    together = seconds(num_microbatches=COUNTS, schedules=SCHEDULES, memory_bytes=memory_bytes)
    assert together == min(alone)


class Priced(Formulas):
    """At a price of memory a run holds a third of its activations, and takes longer."""

    def __init__(self) -> None:
        super().__init__(Blocks(), IntraOptions())
        self.prices: set[bool] = set()

    def runs(self, variant: Variant, num_microbatches: int, wanted: object = None) -> RunCosts:
        runs = super().runs(variant, num_microbatches)
        has_price = variant.price.seconds_per_byte > 0
        self.prices.add(has_price)
        if has_price:
            return replace(runs, loop_s=1.1 * runs.loop_s)
        return replace(runs, microbatch_bytes=3 * runs.microbatch_bytes)

    def alone(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> RunCosts | None:
        runs = super().alone(mesh, remat, num_microbatches)
        # It bounds what is held at every price.
        return runs and replace(runs, microbatch_bytes=runs.microbatch_bytes / 3)


def table_and_problem(memory_bytes: int) -> tuple[LazyTable, Callable[[], StageProblem], Priced]:
    options = replace(OPTIONS, prices=(0.0, 1.0), memory_bytes=memory_bytes)
    kinds, submeshes = submeshes_of(CLUSTER, every=False, memory_bytes=memory_bytes)
    ways = [variants_of(kind, options, 1.0) for kind in kinds]
    costs = Priced()
    table = LazyTable(costs, submeshes, ways, 32, bounds_of=32, report=lambda _: None)

    def problem() -> StageProblem:
        return StageProblem(costs=table.costs(), num_devices=16, num_microbatches=32)

    return table, problem, costs


# All fits at the first price; some stages need the other one.
@pytest.mark.parametrize(("memory_gib", "prices"), [(80, {False}), (12, {False, True})])
def test_other_prices_are_looked_at_where_the_first_does_not_fit(
    memory_gib: float, prices: set[bool]
) -> None:
    table, problem, _ = table_and_problem(int(memory_gib * GIB))
    while True:
        exists = np.argwhere(np.isfinite(table.costs().microbatch_s)).tolist()
        stages = [
            StageSpan(first_layer=i, last_layer=j, submesh=m, variant=v, first_device=0)
            for i, j, m, v in exists
        ]
        if not table.plan(stages, 16, math.inf):
            break
    best = build_stages(problem())
    table, problem, costs = table_and_problem(int(memory_gib * GIB))
    costs.prices.clear()
    found = build_stages(problem())
    while table.plan(found.stages, 16, 0.0):
        assert found.total_s <= best.total_s * (1 + 1e-8)
        found = build_stages(problem())
    assert found.total_s == pytest.approx(best.total_s, rel=1e-9)
    assert costs.prices == prices


def test_plans_at_a_price_stay_when_more_is_planned_at_the_lowest() -> None:
    # Bounds of a run once took the place of its plan at another price: what did not fit was chosen.
    table, _, _ = table_and_problem(12 * GIB)
    at = (0, 2, 1, 1)
    run = StageSpan(first_layer=0, last_layer=2, submesh=1, variant=1, first_device=0)
    assert table.plan([run], 16, 0.0)
    planned = {name: array[at] for name, array in table.costs().columns().items()}
    assert table.plan([replace(run, variant=0)], 16, 0.0)
    assert {name: array[at] for name, array in table.costs().columns().items()} == planned
