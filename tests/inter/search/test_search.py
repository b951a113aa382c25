"""One search over micro-batches and schedules finds the best of searches for each alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages

import meshwise as mw
from inter.search.test_mixed_clusters import OPTIONS, Blocks, Formulas
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant import LayerKey, Variant
from meshwise.inter.layer_cost.run_bounds import RunBounds
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.search.findings import Findings
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.search import search
from meshwise.inter.search.search_space import submeshes_of, variants_of
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem, StageSpan
from meshwise.intra.options import IntraOptions
from meshwise.kernels.arrays import Floats
from meshwise.plan.stage import Remat
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import named
from meshwise.units import GIB

COUNTS = (8, 16, 32, 64)
CLUSTER = mw.Cluster.virtual("2x dgx-a100")
SLOW_NETWORK = mw.Cluster.virtual("2x p3.16xlarge")
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


class Counted(Formulas):
    """Counts how often runs are planned."""

    def __init__(self) -> None:
        super().__init__(Blocks(), IntraOptions())
        self.num_planned = 0

    def runs(self, variant: Variant, num_microbatches: int, wanted: object = None) -> RunCosts:
        self.num_planned += wanted is not None
        return super().runs(variant, num_microbatches)


@pytest.mark.parametrize("memory_gib", [80, 16, 10])
def test_a_search_goes_on_from_what_others_found(memory_gib: int) -> None:
    costs = Counted()
    findings = Findings(costs, CLUSTER.num_devices)
    asked = set[object]()
    for share, schedule in itertools.product((0.0, 0.3, 0.1, 0.0), SCHEDULES):
        options = replace(
            OPTIONS,
            schedules=(schedule,),
            memory_bytes=memory_gib * GIB,
            reserved_share=share,
            num_microbatches=COUNTS,
        )
        alone = Counted()
        try:
            fresh, _ = search(Blocks(), CLUSTER, options, costs=alone)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                search(Blocks(), CLUSTER, options, costs=costs, findings=findings)
            continue
        before = costs.num_planned
        found, _ = search(Blocks(), CLUSTER, options, costs=costs, findings=findings)
        assert found.plan.total_s == fresh.plan.total_s
        # The memory of the stages is that of this search.
        assert found.problem.costs.submeshes == fresh.problem.costs.submeshes
        # What was asked before is known.
        is_known = (share, schedule) in asked
        assert costs.num_planned - before <= (0 if is_known else alone.num_planned)
        asked.add((share, schedule))
    assert len(asked) > 2


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


class FarBounds(Formulas):
    """Bounds on several hosts are far off; a closer look finds more, or nothing."""

    def __init__(self, *, finds: bool) -> None:
        super().__init__(Blocks(), IntraOptions())
        self.finds = finds
        self.planned: set[LogicalMesh] = set()

    def bounds(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> RunBounds:
        found = super().bounds(mesh, remat, num_microbatches)
        return replace(found, loop_s=0.5 * found.loop_s if mesh.num_devices > 8 else found.loop_s)

    def layer(self, key: LayerKey) -> Any:
        found = super().layer(key)
        if not self.finds:
            found.proved_s *= 0
        return found

    def runs(self, variant: Variant, num_microbatches: int, wanted: object = None) -> RunCosts:
        if wanted is not None:
            self.planned.add(variant.mesh)
        return super().runs(variant, num_microbatches)


def test_layers_on_several_hosts_are_looked_at_before_they_are_planned() -> None:
    def found(*, finds: bool) -> tuple[float, int]:
        costs = FarBounds(finds=finds)
        best, _ = search(Blocks(), SLOW_NETWORK, OPTIONS, costs=costs)
        return best.plan.total_s, sum(mesh.num_devices > 8 for mesh in costs.planned)

    (total_s, num_planned), (rough_s, num_rough) = found(finds=True), found(finds=False)
    assert total_s == rough_s
    assert num_planned < num_rough


class Bounded(Formulas):
    """Six layers, of which nothing but bounds of their seconds is known."""

    def __init__(self, loop_s: dict[LogicalMesh, Floats]) -> None:
        super().__init__(Blocks(classes=(0, 1, 1, 1, 1, 5)), IntraOptions())
        self.loop_s = loop_s

    def bounds(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> RunBounds:
        loop_s = self.loop_s[mesh]
        return RunBounds(loop_s=loop_s, resident_bytes=np.zeros_like(loop_s))

    def alone(self, mesh: LogicalMesh, remat: Remat, num_microbatches: int) -> None:
        return None


def _random_costs(rng: np.random.Generator, count: int, submeshes: Any) -> StageCosts:
    """Stages of six layers: seconds of a micro-batch, and of what is done once a step."""
    shape = (6, 6, len(submeshes), 1)
    exists = np.triu(np.ones((6, 6), np.bool_))[:, :, None, None]
    nothing = np.where(exists, np.zeros(shape), np.inf)
    return StageCosts(
        submeshes=tuple(submeshes),
        microbatch_s=np.where(exists, rng.uniform(0.1, 1.0, shape), np.inf),
        once_s=np.where(exists, count * rng.choice([0.0, 0.1, 2.0], shape), np.inf),
        resident_bytes=nothing,
        microbatch_bytes=nothing,
        temporary_bytes=nothing,
    )


@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, EAGER, *named("interleaved-1f1b")])
@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_raised_bounds_are_below_every_step(count: int, schedule: PipelineSchedule) -> None:
    kinds, submeshes = submeshes_of(CLUSTER, every=False, memory_bytes=80 * GIB)
    ways = [variants_of(kind, replace(OPTIONS, prices=(0.0,)), 1.0)[:1] for kind in kinds]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        true = _random_costs(rng, count, submeshes)
        bounds_s = true.microbatch_s * rng.uniform(0.2, 1.0, true.microbatch_s.shape)
        loop_s = {way.mesh: count * bounds_s[:, :, m, 0] for m, (way,) in enumerate(ways)}
        costs = Bounded(loop_s)
        table = LazyTable(costs, submeshes, ways, count, bounds_of=count, report=lambda _: None)
        least_s = count * true.microbatch_s + true.once_s
        for number, (way,) in enumerate(ways):
            any_stage = StageSpan(
                first_layer=0, last_layer=5, submesh=number, variant=0, first_device=0
            )
            # What is known of a mesh serves all submeshes with it, so the least of them.
            alike = [m for m, (other,) in enumerate(ways) if other == way]
            known_s = least_s[:, :, alike, 0].min(axis=2)
            for share in (0.5, 1.0, 1.0):
                table.raise_bounds(way, share * known_s, any_stage)
        raised = table.costs()
        assert (raised.microbatch_s >= bounds_s).all()
        assert (table.least_s() <= least_s * (1 + 1e-12)).all()
        for _ in range(20):
            cuts = np.flatnonzero(rng.integers(0, 2, 5)) + 1
            ends = itertools.pairwise([0, *cuts.tolist(), 6])
            stages = [
                StageSpan(
                    first_layer=i,
                    last_layer=j - 1,
                    submesh=int(rng.integers(len(kinds))),
                    variant=0,
                    first_device=0,
                )
                for i, j in ends
            ]

            def total_s(costs: StageCosts, stages: list[StageSpan] = stages) -> float:
                problem = StageProblem(
                    costs=costs, num_devices=99, num_microbatches=count, schedule=schedule
                )
                return step_time(problem, stages).total_s

            assert total_s(raised) <= total_s(true) * (1 + 1e-9)
