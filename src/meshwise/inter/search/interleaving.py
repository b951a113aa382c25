"""The search for pipelines with several stages on each of some equal meshes.

Pipelines are looked at in the order of their bounds (`chunk_bounds`): those of fewer micro-batches
first, then with a closer look at single layers (`closer_look`), then planned as a whole.  What is
bounded above the fastest simulated step, or above the memory of a device, is not planned; what is
planned is left out if its own work takes as long.  Of planned pipelines the one with the least
closed form comes first; but the first of all comes at once, so that there is a step to beat.

What is tried is in `chunk_space`.  For the fastest pipelines on meshes whose first axis has a
device for each row of a micro-batch, the second axis is then split in two: three axes in all.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.cost_table.second_process import SecondProcess, second_process_of
from meshwise.inter.cost_table.variant import BoundsKey
from meshwise.inter.search.chunk_bounds import held_together, least_held_bytes, least_step_s
from meshwise.inter.search.chunk_space import ChunkSpace
from meshwise.inter.search.chunked_pipeline import (
    ChunkedPipeline,
    Shape,
    chunked_pipeline,
    memory_bytes,
)
from meshwise.inter.search.findings import Findings
from meshwise.inter.search.microbatch_counts import bounds_of
from meshwise.inter.search.mixed_chunks import best_mixed
from meshwise.inter.search.price_of_memory import fitting
from meshwise.inter.search.run_needs import RunNeeds
from meshwise.inter.search.search import FoundPipeline
from meshwise.inter.search.search_space import SearchOptions, priced_way
from meshwise.inter.search.unsearched_memory import NamedMemoryError
from meshwise.plan.stage import Remat
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.units import bytes_text, counted

# How often more memory is tried to say how much suffices.
_ROUNDS = 4
# Three axes are tried for at most so many pairs (kind of mesh, number of micro-batches), and are
# assumed to shorten a step by at most this share.
_MOST_FINER = 3
_FINER_GAIN = 0.03


def interleaved_pipelines(
    cluster: ClusterSpec,
    options: SearchOptions,
    schedule: PipelineSchedule,
    findings: Findings,
    report: Callable[[str], object] = lambda _: None,
    below_s: Callable[[], float] = lambda: math.inf,
    seeks_remedies: Callable[[], bool] = lambda: True,
    tried: dict[int, float] | None = None,
) -> Generator[FoundPipeline]:
    """Yield pipelines that may be faster than the fastest so far.

    While no step is known, the first one that fits comes at once.  All others are planned first,
    and the most promising one comes first.

    Args:
        cluster: Where they run; of equal hosts.
        options: What is searched; `num_stages` is of all meshes together.
        schedule: A schedule of several stages a mesh.
        findings: Of searches with the same layers, to be added to.
        report: Is told of progress.
        below_s: Returns the seconds of the fastest simulated step so far; what takes no less by its
            bound is left out.
        seeks_remedies: Whether to say how much memory would suffice, which takes long; asked
            when nothing fits.
        tried: In the end gets the seconds of the best step by the closed form for each number of
            micro-batches; None if nobody asks.

    Raises:
        PlanError: the cluster's hosts differ, or no number of stages and micro-batches that is
            asked for is possible on it.
        InfeasibleError: nothing fits, and nothing was to be beaten.
    """
    if cluster.is_mixed:
        raise PlanError(
            f"schedule {schedule.name} needs equal hosts; those of {cluster.name} differ; choose "
            "another schedule"
        )
    is_first = math.isinf(below_s())
    found_any = False
    with second_process_of(findings.costs) as beside:
        search = _Search(
            cluster=cluster,
            options=options,
            schedule=schedule,
            findings=findings,
            beside=beside,
            report=report,
            below_s=below_s,
        )
        for found in search.run():
            found_any = True
            yield found
        if tried is not None:
            tried.update(search.tried())
        if is_first and not found_any:
            raise _what_is_missing(search, _ROUNDS if seeks_remedies() else 0)


class _Way(NamedTuple):
    """Layers on meshes of one kind, rematerialised in one way, and micro-batches.

    Attributes:
        kind: What each mesh is.
        num_meshes: n.
        num_microbatches: B.
        mesh: The logical mesh.
        remat: What the backward pass computes again.
    """

    kind: SubmeshKind
    num_meshes: int
    num_microbatches: int
    mesh: LogicalMesh
    remat: Remat


class _Waiting(NamedTuple):
    """A pipeline that is bounded, or one that is planned.

    Attributes:
        bound_s: No step takes less; of one that is planned its closed form.
        number: Tells them apart.
        way: Of its layers.
        schedule: With its stages a mesh.
        is_looked_at: Whether its layers were looked at one by one, as far as that may matter.
        made: The pipeline, if it is planned.
    """

    bound_s: float
    number: int
    way: _Way
    schedule: PipelineSchedule
    is_looked_at: bool = False
    made: ChunkedPipeline | None = None


@dataclass(slots=True, kw_only=True)
class _Search:
    """One search.

    Attributes:
        cluster, options, schedule, findings, report, below_s: As `interleaved_pipelines` has them.
        beside: Computes bounds too.
        bounds_memory: Whether what is bounded above the memory is left out.
        planned: What was planned, whether it fits or not.
    """

    cluster: ClusterSpec
    options: SearchOptions
    schedule: PipelineSchedule
    findings: Findings
    beside: SecondProcess
    report: Callable[[str], object]
    below_s: Callable[[], float] = lambda: math.inf
    bounds_memory: bool = True
    planned: list[ChunkedPipeline] = field(default_factory=list[ChunkedPipeline])
    _waiting: list[_Waiting] = field(init=False, default_factory=list[_Waiting])
    _numbers: Iterator[int] = field(init=False, default_factory=itertools.count)
    _tries: ChunkSpace = field(init=False)
    # Whose bounds serve a pipeline before it is looked at more closely.
    _rough: dict[_Way, BoundsKey] = field(init=False, default_factory=dict[_Way, BoundsKey])

    def __post_init__(self) -> None:
        self._tries = ChunkSpace(
            cluster=self.cluster,
            options=self.options,
            schedule=self.schedule,
            costs=self.findings.costs,
        )

    def run(self) -> Iterator[FoundPipeline]:
        """Yield what fits, until no bound is below the fastest step."""
        self._bound_all()
        yield from self._fastest_first()
        self._bound_three_axes()
        yield from self._fastest_first()

    def _fastest_first(self) -> Iterator[FoundPipeline]:
        """Yield what fits of all that waits, until no bound is below the fastest step."""
        is_first = True
        # Where nothing fitted at the prices tried, larger micro-batches are not tried.
        too_few: dict[object, int] = {}
        while self._waiting:
            best = heapq.heappop(self._waiting)
            way, schedule = best.way, best.schedule
            if best.made is not None:
                if best.made.least_s < self.below_s():
                    yield self._found(best.made)
                continue
            if best.bound_s >= self.below_s():
                continue
            alike = (way.mesh, way.remat, schedule)
            if way.num_microbatches < too_few.get(alike, 0):
                continue
            if not best.is_looked_at:
                bound_s = max(best.bound_s, self._looked_at(way))
                heapq.heappush(self._waiting, best._replace(bound_s=bound_s, is_looked_at=True))
                continue
            for made in self._planned(way, schedule):
                if not self._fits(made):
                    too_few[alike] = way.num_microbatches
                    continue
                if is_first and math.isinf(self.below_s()):
                    # Its step is a limit for all others.
                    is_first = False
                    yield self._found(made)
                    continue
                waits = best._replace(bound_s=made.step_s, number=next(self._numbers), made=made)
                heapq.heappush(self._waiting, waits)

    def _found(self, made: ChunkedPipeline) -> FoundPipeline:
        return made.found(self.options, self._space(), self.tried())

    def _bound_three_axes(self) -> None:
        """Bound the fastest pipelines on meshes of three axes, which may make them faster."""
        below_s = self.below_s() / (1 - _FINER_GAIN)
        fastest: dict[object, tuple[_Way, PipelineSchedule]] = {}
        for made in sorted(self.planned, key=lambda made: made.step_s):
            (kind, num_meshes, count, _, schedule), (first, *_) = made.shape, made.ways
            mesh = self._tries.rows_first(kind, count, 2)
            if mesh is not None and self._fits(made) and made.step_s < below_s:
                way = _Way(kind, num_meshes, count, mesh, first.remat)
                fastest.setdefault((kind, count), (way, schedule))
        for way, schedule in [*fastest.values()][:_MOST_FINER]:
            self._rough[way] = _key(way)
            self._push(way, schedule, is_looked_at=True)

    def _fits(self, made: ChunkedPipeline) -> bool:
        return made.peak_bytes <= memory_bytes(made.shape.kind, self.options)

    def _bound_all(self) -> None:
        """Bound every pipeline roughly."""
        shapes = self._tries.shapes()
        counts = sorted({count for _, _, count in shapes})
        ways = dict.fromkeys(
            _Way(kind, num_meshes, count, mesh, remat)
            for kind, num_meshes, count in shapes
            for mesh, remat in self._tries.views(kind, count)
        )
        self._rough = {way: self._rough_key(way, counts) for way in ways}
        self.beside.bound(list(self._rough.values()), self.report)
        for way in ways:
            for schedule in self._tries.schedules(way.num_meshes):
                if self.options.num_stages in (None, way.num_meshes * schedule.chunks):
                    self._push(way, schedule)

    def _push(self, way: _Way, schedule: PipelineSchedule, *, is_looked_at: bool = False) -> None:
        """Bound a pipeline, and let it wait if it may be faster than the fastest and fit."""
        needs = self._needs_of(way)
        if needs is None:
            return
        num_meshes, count = way.num_meshes, way.num_microbatches
        bound_s = least_step_s(needs.loop_s, schedule, num_meshes, count)
        if not bound_s < self.below_s():
            return
        if self.bounds_memory:
            held = held_together(schedule, num_meshes, min(count, 2 * num_meshes))
            always = needs.resident_bytes
            if self.options.bounds_temporary:
                always = always + needs.temporary_bytes / schedule.chunks
            least = least_held_bytes(always, needs.microbatch_bytes, held, num_meshes)
            if least > memory_bytes(way.kind, self.options):
                return
        number = next(self._numbers)
        heapq.heappush(self._waiting, _Waiting(bound_s, number, way, schedule, is_looked_at))

    def _needs_of(self, way: _Way) -> RunNeeds | None:
        return self.findings.needs.of(_key(way), self._rough[way])

    def _looked_at(self, way: _Way) -> float:
        """Bound pipelines by a closer look at their layers, if that might rule them out."""
        needs, below_s = self._needs_of(way), self.below_s()
        if needs is None or math.isinf(below_s):
            return 0.0
        layer_s, closer = np.diagonal(needs.loop_s), self.findings.closer
        return closer.least_s(_key(way), self._rough[way], layer_s, below_s)

    def _rough_key(self, way: _Way, counts: Sequence[int]) -> BoundsKey:
        """Return whose bounds serve a pipeline before it is looked at more closely."""
        base: Remat = "none" if "none" in self.options.remats else way.remat
        return BoundsKey(way.mesh, base, self._rough_count(way.mesh, way.num_microbatches, counts))

    def _rough_count(self, mesh: LogicalMesh, count: int, counts: Sequence[int]) -> int:
        """Return a number of micro-batches whose bounds serve this one: known already if any is."""
        divisors = (c for c in range(count, 0, -1) if count % c == 0)
        known = (c for c in divisors if self.findings.costs.has_bounds(mesh, "none", c))
        return next(known, bounds_of(count, counts))

    def _planned(self, way: _Way, schedule: PipelineSchedule) -> list[ChunkedPipeline]:
        """Return the pipelines that fit, at about the least price of memory and at two prices.

        Returns:
            The pipelines.  Where none fits, the one that holds the least.  An empty list where
            there is no plan, or where a step takes too long even at the lowest price.
        """
        kind, num_meshes, count = way.kind, way.num_meshes, way.num_microbatches
        shape = Shape(kind, num_meshes, count, self.cluster.num_hosts, schedule)
        sizes = "x".join(map(str, way.mesh.sizes))
        self.report(
            f"B={count}: {counted(shape.num_stages, 'stage')} on {counted(num_meshes, 'mesh')} as "
            f"{sizes}, remat {way.remat}"
        )
        tried: list[ChunkedPipeline] = []

        def planned(price: float) -> ChunkedPipeline | None:
            second = self._tries.guessed_s(kind)
            variant = priced_way(kind, way.mesh, way.remat, price, self.options, second)
            made = chunked_pipeline(shape, variant, self.findings.costs)
            tried.extend([] if made is None else [made])
            return made

        below_s, room = self.below_s(), memory_bytes(kind, self.options)
        fits = fitting(planned, room, below_s)
        mixed = best_mixed(tried, room, self.findings.costs.source, below_s)
        found = [made for made in (fits, mixed) if made is not None]
        if not found and tried and tried[0].least_s < below_s:
            found = [min(tried, key=lambda made: made.peak_bytes)]
        self.planned += tried if mixed is None else [*tried, mixed]
        return found

    def _space(self) -> str:
        chunks = "two or more" if self.schedule.any_chunks else self.schedule.chunks
        return (
            f"pipelines on equal meshes, each of which runs {chunks} stages; layers are cut so "
            "that the slowest stage is as fast as it can be, and all planned at one price of "
            "memory, or the first stages of each mesh at a higher one; meshes have up to two axes, "
            "or three where two make a step fast; "
            f"schedule {self.schedule.name}"
        )

    def tried(self) -> dict[int, float]:
        """Return the seconds of the best step by the closed form for each B with one that fits."""
        found: dict[int, float] = {}
        for made in self.planned:
            if self._fits(made):
                count = made.shape.num_microbatches
                found[count] = min(found.get(count, math.inf), made.time.total_s)
        return found


def _key(way: _Way) -> BoundsKey:
    return BoundsKey(way.mesh, way.remat, way.num_microbatches)


def _what_is_missing(search: _Search, rounds: int) -> InfeasibleError:
    """What there is, and with how much memory there is a pipeline: it was searched with so much."""
    free = replace(search, bounds_memory=False, planned=[])
    list(free.run())
    if not free.planned:
        return InfeasibleError(
            "no pipeline with several stages a mesh: some layer has no plan on these meshes"
        )
    least = min(free.planned, key=lambda f: f.peak_bytes)
    shape, options = least.shape, search.options
    text = (
        f"no pipeline under {search.schedule.name} fits into memory: the least, "
        f"{counted(shape.num_meshes, 'mesh')} of {counted(shape.schedule.chunks, 'stage')} with "
        f"{counted(shape.num_microbatches, 'micro-batch')}, remat "
        f"{least.ways[0].remat}, needs {bytes_text(least.peak_bytes)} a device of "
        f"{bytes_text(memory_bytes(shape.kind, options))}"
    )
    for _ in range(rounds):
        num_bytes = math.ceil(least.peak_bytes)
        more = replace(options, memory_bytes=num_bytes)
        again = replace(free, options=more, planned=[])
        if next(again.run(), None) is not None:
            return NamedMemoryError(text, num_bytes)
        # At prices of more memory plans may hold more.
        least = min(again.planned, key=lambda f: f.peak_bytes)
    return InfeasibleError(text)
