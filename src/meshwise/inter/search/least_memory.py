"""The least memory with which a pipeline fits: what is said where none does.

Layers are planned so that they hold as little as they can, whatever time they take.  Then stages
are chosen for which the fullest device holds least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import TraceError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.pin_conflicts import some_stages
from meshwise.inter.search.search_space import (
    DEAREST,
    SearchOptions,
    asked_submeshes,
    guessed_s,
    stage_problem,
    variants_of,
)
from meshwise.inter.search.stage_pins import masked
from meshwise.inter.search.unsearched_memory import NamedMemoryError
from meshwise.inter.stages.stage_problem import StageProblem, StageSpan, in_flight, memory_bytes
from meshwise.intra.limit.refusal import REMATERIALISE
from meshwise.units import bytes_text, counted

# Memory that is more by this part than the least is near enough.
_NEAR = 0.01
# Prices of memory are shares of the memory that there is: with more of it plans may hold more.
_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory:
    """Stages that fit, with the memory of their fullest device.

    Attributes:
        num_bytes: Memory of a device that is enough for a search; about what the fullest device of
            these stages holds.
        problem: What the stages were chosen from.
        stages: The stages.
        variants: For each submesh the ways to plan on it.
    """

    num_bytes: int
    problem: StageProblem
    stages: tuple[StageSpan, ...]
    variants: Sequence[Sequence[Variant]]

    @property
    def text(self) -> str:
        """What is planned, and what its fullest device holds."""
        costs, stages = self.problem.costs, self.stages
        need = [memory_bytes(self.problem, stages, k) for k in range(len(stages))]
        k = max(range(len(stages)), key=need.__getitem__)
        stage = stages[k]
        count, schedule = self.problem.num_microbatches, self.problem.schedule.name
        remat = self.variants[stage.submesh][stage.variant].remat
        memory = costs.memory_text(in_flight(self.problem, stages, k), stage.place)
        return (
            f"{counted(len(stages), 'stage')}, {counted(count, 'micro-batch')}, "
            f"schedule {schedule}; the fullest is stage {k}, layers {stage.first_layer} to "
            f"{stage.last_layer} on submesh {costs.submeshes[stage.submesh]}, remat {remat}: "
            f"{memory}"
        )


def least_memory(
    cluster: ClusterSpec,
    options: SearchOptions,
    costs: VariantCosts,
    counts: Sequence[int],
    report: Callable[[str], object] = lambda _: None,
) -> LeastMemory | None:
    """Stages whose fullest device holds about as little as it can; None if there are no stages.

    A search with that much memory, which looks at such plans too, finds stages that fit.

    Args:
        cluster: Where they would run.
        options: What is searched, pins included.
        costs: Plans of layers.
        counts: Values of B that are looked at.
        report: Is told of progress.
    """
    for _ in range(_ROUNDS):
        report("looking for the least memory that suffices")
        least = _least_at(cluster, options, costs, counts)
        if least is None:
            return None
        has = options.memory_bytes or min(g.host.device.memory_bytes for g in cluster.groups)
        if least.num_bytes <= has:
            return replace(least, num_bytes=has) if options.memory_bytes else least
        options = replace(options, memory_bytes=least.num_bytes)
    return None


def too_little_memory(
    cluster: ClusterSpec, options: SearchOptions, least: LeastMemory
) -> NamedMemoryError:
    """Return the error that says what there is, and with how much there would be a pipeline.

    Args:
        cluster: Where nothing fits.
        options: What was searched.
        least: The least memory with which a pipeline fits.
    """
    return NamedMemoryError(no_pipeline_fits(cluster, options), least.num_bytes, least.text)


def no_pipeline_fits(cluster: ClusterSpec, options: SearchOptions) -> str:
    """Return the beginning of such a text: memory, devices, and what may be computed again.

    Args:
        cluster: Where nothing fits.
        options: What was searched.
    """
    if options.memory_bytes is None:
        devices = {g.host.device.name: g.host.device.memory_bytes for g in cluster.groups}
        there = " and ".join(f"{bytes_text(n)} of a {name}" for name, n in devices.items())
    else:
        there = f"{bytes_text(options.memory_bytes)} ({options.memory_bytes} bytes) of a device"
    devices = counted(cluster.num_devices, "device")
    return (
        f"no pipeline was found that fits into {there}, on {devices} of {cluster.name}, with remat "
        f"{' or '.join(options.remats)}; what is large inside a layer can be computed again by "
        f"{REMATERIALISE} around it"
    )


def _least_at(
    cluster: ClusterSpec, options: SearchOptions, costs: VariantCosts, counts: Sequence[int]
) -> LeastMemory | None:
    """The least at prices of the memory that the options allow."""
    kinds, submeshes = asked_submeshes(cluster, replace(options, places=False))
    # Whatever fits somewhere may be among the least.
    anywhere = [replace(submesh, memory_bytes=math.inf) for submesh in submeshes]
    second = guessed_s(kinds, cluster, options)
    ways = [variants_of(kind, replace(options, prices=(DEAREST,)), second) for kind in kinds]
    tables: list[tuple[int, LazyTable]] = []
    for count in counts:
        try:
            table = LazyTable(costs, anywhere, ways, count, bounds_of=count, report=lambda _: None)
            costs.trace(options.remats[0], count)
        except TraceError:
            # The step does not separate so far.
            continue
        tables.append((count, table))
    while True:
        best: tuple[LazyTable, LeastMemory] | None = None
        for count, table in tables:
            known = masked(table.costs(), options.pins, kinds, ways)
            for schedule in options.schedules:
                problem = stage_problem(known, cluster, options, count, schedule, None)
                limit = math.inf if best is None else best[1].num_bytes * (1 - _NEAR)
                stages = _least_stages(problem, options.num_stages, limit)
                if stages:
                    need = max(memory_bytes(problem, stages, k) for k in range(len(stages)))
                    least = LeastMemory(
                        num_bytes=math.ceil(need), problem=problem, stages=stages, variants=ways
                    )
                    best = table, least
        if best is None:
            return None
        table, least = best
        if not (
            table.plan(least.stages, cluster.num_devices, math.inf) or table.correct(least.stages)
        ):
            return least


def _least_stages(
    problem: StageProblem, num_stages: int | None, limit: float
) -> tuple[StageSpan, ...]:
    """Stages whose fullest device holds about the least within a limit; none if none fit."""
    best: tuple[StageSpan, ...] = ()
    low, high = 0.0, limit
    while not best or high > low * (1 + _NEAR):
        middle = high if not best else (low + high) / 2
        stages = some_stages(_with_memory(problem, middle), num_stages)
        if stages:
            best = stages
            high = max(memory_bytes(problem, stages, k) for k in range(len(stages)))
        elif not best:
            return ()
        else:
            low = middle
    return best


def _with_memory(problem: StageProblem, num_bytes: float) -> StageProblem:
    submeshes = tuple(replace(m, memory_bytes=num_bytes) for m in problem.costs.submeshes)
    return replace(problem, costs=replace(problem.costs, submeshes=submeshes))
