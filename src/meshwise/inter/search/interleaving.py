"""Schedules with several stages on each of some equal meshes, in turns or in the shape of a V.

With n meshes and v stages on each of them a pipeline fills and drains in a v-th of the time, or in
less.  The schedule says which stage lies where.  All meshes have one shape and plan their layers in
one way, as Megatron-LM's do; the layers are cut so that the slowest stage takes the least, and
among such cuts stages are as equal as can be.  Plans that fit are ranked by the closed form of the
schedule, the first of them are simulated, and the fastest of these is taken; another plan may be
faster.  What has a bound above them is not planned.

Source: docs/facts.md section 5 (Megatron-LM's interleaved schedule, schedules in a V, their times).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource, VariantCosts
from meshwise.inter.layer_cost.run_bounds import RunBounds
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.search.best_cuts import best_cuts, least_cost
from meshwise.inter.search.microbatch_counts import bounds_of, microbatch_counts
from meshwise.inter.search.search import FoundPipeline
from meshwise.inter.search.search_space import SearchOptions, guessed_s, variants_of
from meshwise.inter.search.unsearched_memory import NamedMemoryError
from meshwise.inter.stages.objective import StepTime
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem, StageSpan
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.inter.stages.transfers import bytes_per_s
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.units import bytes_text

# How often more memory is tried to say how much suffices.
_ROUNDS = 4
# So many times the slowest stage's bound is far above it.
_FAR = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interleaved:
    """One pipeline.

    Attributes:
        kind: What each mesh is.
        num_meshes: n.
        count: B.
        way: How layers are planned.
        runs: What they cost.
        cuts: First and last layer of each stage.
        time: Of a step by the closed form.
        peak_bytes: Of the fullest mesh, one device.
    """

    kind: SubmeshKind
    num_meshes: int
    count: int
    way: Variant
    runs: RunCosts
    cuts: Ranges
    time: StepTime
    peak_bytes: float


def interleaved_pipelines(
    cluster: ClusterSpec,
    options: SearchOptions,
    schedule: PipelineSchedule,
    costs: VariantCosts,
    report: Callable[[str], object] = lambda _: None,
    most: int = 4,
    cutoff_s: float = math.inf,
    seeks_remedies: bool = True,
) -> list[FoundPipeline]:
    """The pipelines that promise most, the best first; none if all are bounded above the cutoff.

    Args:
        cluster: Where they run; of equal hosts.
        options: What is searched; `num_stages` is of all meshes together.
        schedule: A schedule of several stages a mesh.
        costs: Plans layers.
        report: Is told of progress.
        most: So many at most.
        cutoff_s: Seconds of a step; what promises no less is not planned.
        seeks_remedies: Whether to say how much memory would suffice, which takes long.

    Raises:
        PlanError: the cluster's hosts differ, or no number of stages and micro-batches that is
            asked for can be interleaved on it.
        InfeasibleError: nothing fits.
    """
    if cluster.is_mixed:
        raise PlanError(
            f"schedule {schedule.name} needs equal hosts; those of {cluster.name} differ; choose "
            "another schedule"
        )
    ranked, fitting, found = _most_promising(
        cluster, options, schedule, costs, report, most, cutoff_s
    )
    if not fitting and math.isinf(cutoff_s):
        raise (
            _what_is_missing(
                cluster, options, schedule, costs, found, _ROUNDS if seeks_remedies else 0
            )
            if found
            else InfeasibleError("no interleaved pipeline: some layer has no plan on these meshes")
        )
    space = (
        f"the {len(ranked)} that promise most of all pipelines of {schedule.chunks} stages on each "
        f"of several equal meshes, all planned in one way, layers cut for the least slowest stage; "
        f"schedule {schedule.name}"
    )
    return [_found(f, options, schedule, space, fitting) for f in ranked]


class _Shape(NamedTuple):
    """Which meshes run how many micro-batches.

    Attributes:
        kind: What each mesh is.
        num_meshes: n.
        num_microbatches: B.
    """

    kind: SubmeshKind
    num_meshes: int
    num_microbatches: int


class _Waiting(NamedTuple):
    """Pipelines that are bounded, or one that is planned.

    Attributes:
        bound_s: No less does a step take.
        number: Tells them apart.
        shape: Of the pipelines.
        ways: How layers may be planned: on one mesh, rematerialised in one way.
        is_rough: Whether the bound is of fewer micro-batches, without rematerialisation.
        made: The pipeline, if it is planned.
    """

    bound_s: float
    number: int
    shape: _Shape
    ways: tuple[Variant, ...]
    is_rough: bool
    made: _Interleaved | None = None


def _most_promising(
    cluster: ClusterSpec,
    options: SearchOptions,
    schedule: PipelineSchedule,
    costs: VariantCosts,
    report: Callable[[str], object],
    most: int,
    cutoff_s: float = math.inf,
) -> tuple[list[_Interleaved], list[_Interleaved], list[_Interleaved]]:
    """What fits and takes least by the closed form, the fastest first; what fits; what was planned.

    The least bound is looked at more closely, until it is the time of a plan.
    """
    shapes = _shapes(cluster, options, schedule, len(costs.source.classes))
    counts = sorted({count for _, _, count in shapes})
    numbers = itertools.count()
    waiting: list[_Waiting] = []

    def bounded(shape: _Shape, ways: tuple[Variant, ...], rough: bool) -> None:
        count = shape.num_microbatches
        mesh, remat = ways[0].mesh, "none" if rough else ways[0].remat
        of = _rough_count(mesh, count, counts, costs) if rough else count
        bounds = costs.bounds(mesh, remat, of)
        if bounds is None:
            return
        bound_s = _bound_s(bounds, shape, schedule, costs.source)
        heapq.heappush(waiting, _Waiting(bound_s, next(numbers), shape, ways, rough))

    for shape in shapes:
        second = guessed_s([shape[0]], cluster, options)
        groups: dict[object, list[Variant]] = {}
        for way in variants_of(shape[0], options, second):
            groups.setdefault((way.mesh, way.remat), []).append(way)
        for ways in groups.values():
            bounded(shape, tuple(ways), rough="none" in options.remats)
    ranked: list[_Interleaved] = []
    found: list[_Interleaved] = []
    # Of which nothing fits, larger micro-batches do not either.
    too_few: dict[object, int] = {}
    while waiting and len(ranked) < most and waiting[0].bound_s < cutoff_s:
        best = heapq.heappop(waiting)
        kind, num_meshes, count = best.shape
        if best.made is not None:
            ranked.append(best.made)
            continue
        way = best.ways[0].mesh, best.ways[0].remat
        if count < too_few.get(way, 0):
            continue
        if best.is_rough:
            bounded(best.shape, best.ways, rough=False)
            continue
        report(f"B={count}: {num_meshes * schedule.chunks} stages on {num_meshes} meshes")
        planned = _planned(best, options, schedule, costs)
        found += planned
        if planned and planned[-1].peak_bytes <= _memory_bytes(kind, options):
            made = planned[-1]
            bound_s, number = made.time.total_s, next(numbers)
            heapq.heappush(waiting, best._replace(bound_s=bound_s, number=number, made=made))
        elif planned:
            too_few[way] = count
    fitting = [f for f in found if f.peak_bytes <= _memory_bytes(f.kind, options)]
    return ranked, fitting, found


def _planned(
    asked: _Waiting, options: SearchOptions, schedule: PipelineSchedule, costs: VariantCosts
) -> list[_Interleaved]:
    """What was planned at one price of memory after the other, until something fits, the last.

    At a higher price it takes no less time.
    """
    found: list[_Interleaved] = []
    for way in asked.ways:
        made = _interleaved(asked.shape, way, schedule, costs)
        if made is not None:
            found.append(made)
            if made.peak_bytes <= _memory_bytes(asked.shape.kind, options):
                break
    return found


def _rough_count(mesh: LogicalMesh, count: int, counts: Sequence[int], costs: VariantCosts) -> int:
    """Return a number of micro-batches whose bounds serve this one: where they are known already.

    Args:
        mesh: Of a stage.
        count: B.
        counts: All that are tried.
        costs: Plans of layers.
    """
    divisors = (c for c in range(count, 0, -1) if count % c == 0)
    known = (c for c in divisors if costs.has_bounds(mesh, "none", c))
    return next(known, bounds_of(count, counts))


def _bound_s(
    bounds: RunBounds, shape: _Shape, schedule: PipelineSchedule, source: LayerSource
) -> float:
    """Seconds that no pipeline takes less than by the closed form, however the layers are cut."""
    kind, num_meshes, count = shape
    stages, share = num_meshes * schedule.chunks, _fill_share(schedule)
    slowest, _ = least_cost(bounds.loop_s, stages, np.maximum)
    busy, _ = least_cost(bounds.loop_s, stages, np.add)
    least = min(map(source.crossing_bytes, range(len(source.classes) - 1)))
    meshes = schedule.mesh_of_stage(stages, num_meshes)
    num_sends = sum(a != b for a, b in itertools.pairwise(meshes))
    busy = _load_s(schedule, busy, count * num_sends * _crossing_s(kind, least / count))
    steady = count - share
    return (busy * share + steady * max(busy / num_meshes, slowest)) / count


def _load_s(schedule: PipelineSchedule, computes_s: float, sends_s: float) -> float:
    """Seconds that a mesh is taken, by what it computes and by what it sends."""
    return max(computes_s, sends_s) if schedule.hides_transfers else computes_s + sends_s


def _fill_share(schedule: PipelineSchedule) -> float:
    """Return the share of a micro-batch's time that shows while the pipeline fills and drains."""
    return float(schedule.fill_s(np.ones(())))


def _shapes(
    cluster: ClusterSpec, options: SearchOptions, schedule: PipelineSchedule, num_layers: int
) -> list[_Shape]:
    """Meshes that fill the cluster in turns, and numbers of micro-batches that they divide."""
    counts, chunks = microbatch_counts(options), schedule.chunks
    kinds = {
        cluster.num_devices // kind.num_devices: kind
        for kind in cluster.submesh_kinds()
        if cluster.num_devices % kind.num_devices == 0
    }
    found = [
        _Shape(kind, n, count)
        for n, kind in sorted(kinds.items())
        if n > 1 and n * chunks <= num_layers and options.num_stages in (None, n * chunks)
        for count in counts
        if schedule.allows(n, count)
    ]
    if not found:
        raise PlanError(
            f"schedule {schedule.name} with {chunks} stages a mesh: no {_asked(options)} on "
            f"{cluster.num_devices} devices of {cluster.name} with {num_layers} layers; stages "
            f"must be {chunks} times as many as equal meshes ("
            f"{', '.join(str(n) for n in sorted(kinds) if n > 1) or 'there is one device only'}), "
            f"micro-batches ({', '.join(map(str, counts))}) {schedule.microbatches_text}"
        )
    return found


def _asked(options: SearchOptions) -> str:
    return "pipeline" if options.num_stages is None else f"{options.num_stages} stages"


def _interleaved(
    shape: _Shape,
    way: Variant,
    schedule: PipelineSchedule,
    costs: VariantCosts,
) -> _Interleaved | None:
    """The best cut into stages; None if some layer has no plan."""
    kind, num_meshes, count = shape
    num_stages = num_meshes * schedule.chunks
    found = _best_cuts(way, count, num_stages, costs)
    if found is None:
        return None
    cuts, runs = found
    busy = runs.loop_s / count + runs.gather_s
    mesh_of = schedule.mesh_of_stage(num_stages, num_meshes)
    sent = _transfer_s(kind, cuts, mesh_of, count, costs)
    computes, sends, once = ([0.0] * num_meshes for _ in range(3))
    for k, (at, mesh) in enumerate(zip(cuts, mesh_of, strict=True)):
        computes[mesh] += float(busy[at])
        sends[mesh] += sent[k]
        once[mesh] += float(runs.once_s[at])
    load = [_load_s(schedule, *both) for both in zip(computes, sends, strict=True)]
    share = _fill_share(schedule)
    time = StepTime(
        fill_s=sum(load) * share,
        transfer_s=0.0,
        steady_s=(count - share) * max(load),
        once_s=max(once),
    )
    table = schedule.table(num_stages, count, num_meshes)
    peaks: list[float] = []
    sizes = [float(runs.microbatch_bytes[at]) for at in cuts]
    # What gradients of weights wait for is not known yet.
    late = [0.0] * num_stages
    for mesh in range(num_meshes):
        held = held_at_peak(table, mesh, sizes, late)
        peaks.append(
            sum(
                float(runs.resident_bytes[cuts[k]]) + in_flight * sizes[k]
                for k, (in_flight, _) in held.items()
            )
            + max(float(runs.temporary_bytes[cuts[k]]) for k in held)
        )
    return _Interleaved(
        kind=kind,
        num_meshes=num_meshes,
        count=count,
        way=way,
        runs=runs,
        cuts=cuts,
        time=time,
        peak_bytes=max(peaks),
    )


def _best_cuts(
    way: Variant, count: int, num_stages: int, costs: VariantCosts
) -> tuple[Ranges, RunCosts] | None:
    """The best cut into stages, and the costs of those that may be among them; None without a plan.

    Runs whose bounds are far above the slowest stage's are looked at only if it takes so much.
    """
    bounds = costs.bounds(way.mesh, way.remat, count)
    if bounds is None:
        return None
    slowest, _ = least_cost(bounds.loop_s, num_stages, np.maximum)
    for wanted in (bounds.loop_s <= _FAR * slowest, None):
        runs = costs.runs(way, count, wanted)
        if runs is None:
            return None
        busy = runs.loop_s / count + runs.gather_s
        cuts = best_cuts(busy, num_stages)
        if cuts is not None and max(busy[at] for at in cuts) * count <= _FAR * slowest:
            return cuts, runs
        if wanted is None:
            return None if cuts is None else (cuts, runs)
    return None


def _transfer_s(
    kind: SubmeshKind, cuts: Ranges, mesh_of: Sequence[int], count: int, costs: VariantCosts
) -> list[float]:
    """Seconds in which each stage sends one micro-batch on, and what comes back for it."""
    return [
        _crossing_s(kind, costs.source.crossing_bytes(last) / count) if here != there else 0.0
        for (_, last), (here, there) in zip(cuts, itertools.pairwise(mesh_of), strict=False)
    ] + [0.0]


def _crossing_s(kind: SubmeshKind, num_bytes: float) -> float:
    """Seconds in which a micro-batch passes to the next mesh, and what comes back for it."""
    rate, latency_s = bytes_per_s(kind, kind)
    return 2 * (num_bytes / rate + latency_s)


def _memory_bytes(kind: SubmeshKind, options: SearchOptions) -> int:
    """Return what a device may hold, without what is left free."""
    has = options.memory_bytes or kind.device.memory_bytes
    return has - _reserved_bytes(kind, options)


def _reserved_bytes(kind: SubmeshKind, options: SearchOptions) -> int:
    has = options.memory_bytes or kind.device.memory_bytes
    return math.ceil(options.reserved_share * has)


def _what_is_missing(
    cluster: ClusterSpec,
    options: SearchOptions,
    schedule: PipelineSchedule,
    costs: VariantCosts,
    found: Sequence[_Interleaved],
    rounds: int,
) -> InfeasibleError:
    """What there is, and with how much memory there is a pipeline: it was searched with so much."""
    least = min(found, key=lambda f: f.peak_bytes)
    text = (
        f"no interleaved pipeline fits into memory: the least, {least.num_meshes} meshes of "
        f"{schedule.chunks} stages with {least.count} micro-batches, remat {least.way.remat}, "
        f"needs {bytes_text(least.peak_bytes)} a device of "
        f"{bytes_text(_memory_bytes(least.kind, options))}"
    )
    for _ in range(rounds):
        num_bytes = math.ceil(least.peak_bytes)
        more = replace(options, memory_bytes=num_bytes)
        _, fitting, found = _most_promising(cluster, more, schedule, costs, lambda _: None, 1)
        if fitting:
            return NamedMemoryError(text, num_bytes)
        # At prices of more memory plans may hold more.
        least = min(found, key=lambda f: f.peak_bytes)
    return InfeasibleError(text)


def _tried(fitting: Sequence[_Interleaved]) -> Iterator[tuple[int, float]]:
    for count in sorted({f.count for f in fitting}):
        yield count, min(f.time.total_s for f in fitting if f.count == count)


def _found(
    chosen: _Interleaved,
    options: SearchOptions,
    schedule: PipelineSchedule,
    space: str,
    fitting: Sequence[_Interleaved],
) -> FoundPipeline:
    """The pipeline as a search gives it."""
    runs, kind = chosen.runs, chosen.kind
    submesh = StageSubmesh(
        num_hosts=kind.num_hosts,
        devices_per_host=kind.devices_per_host,
        memory_bytes=_memory_bytes(kind, options),
        reserved_bytes=_reserved_bytes(kind, options),
    )
    stages = tuple(
        StageSpan(
            first_layer=first,
            last_layer=last,
            submesh=0,
            variant=0,
            first_device=mesh * kind.num_devices,
        )
        for (first, last), mesh in zip(
            chosen.cuts,
            schedule.mesh_of_stage(len(chosen.cuts), chosen.num_meshes),
            strict=True,
        )
    )
    return FoundPipeline(
        plan=StagePlan(
            stages=stages,
            time=chosen.time,
            bound_s=chosen.time.total_s,
            error_s=0.0,
            space=space,
        ),
        problem=StageProblem(
            costs=StageCosts(
                submeshes=(submesh,),
                microbatch_s=(runs.loop_s / chosen.count)[..., None, None],
                once_s=runs.once_s[..., None, None],
                resident_bytes=runs.resident_bytes[..., None, None],
                microbatch_bytes=runs.microbatch_bytes[..., None, None],
                temporary_bytes=runs.temporary_bytes[..., None, None],
                gather_s=runs.gather_s[..., None, None],
            ),
            num_devices=chosen.num_meshes * kind.num_devices,
            num_microbatches=chosen.count,
            schedule=schedule,
        ),
        kinds=(kind,),
        variants=((chosen.way,),),
        tried=dict(_tried(fitting)),
    )
