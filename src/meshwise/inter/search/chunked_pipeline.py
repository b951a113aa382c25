"""One pipeline with several stages on each of some equal meshes: its cuts, its time, its memory.

All meshes have one shape and plan their layers in one way, as Megatron-LM's do, or some of their
stages in another way (`mixed_chunks`).  The layers are cut so that the slowest stage takes the
least, and among such cuts stages are as equal as can be.

Source: docs/facts.md section 5 (Megatron-LM's interleaved schedule, schedules in a V, their times).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource, VariantCosts
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.search.best_cuts import best_cuts, least_of_largest
from meshwise.inter.search.search import FoundPipeline
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.stages.objective import StepTime
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem, StageSpan
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.inter.stages.transfers import bytes_per_s
from meshwise.kernels.arrays import Floats
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.pipeline_schedule import PipelineSchedule

# What is more than so many times the bound of the slowest stage is far above it.
_FAR = 1.3


class Shape(NamedTuple):
    """Which meshes run how many stages and micro-batches.

    Attributes:
        kind: What each mesh is.
        num_meshes: n.
        num_microbatches: B.
        num_hosts: Hosts of the cluster.
        schedule: The schedule; it says how many stages each mesh has.
    """

    kind: SubmeshKind
    num_meshes: int
    num_microbatches: int
    num_hosts: int
    schedule: PipelineSchedule

    @property
    def num_stages(self) -> int:
        """Stages of all meshes."""
        return self.num_meshes * self.schedule.chunks

    @property
    def mesh_of_stage(self) -> tuple[int, ...]:
        """For each stage the mesh on which it lies."""
        return self.schedule.mesh_of_stage(self.num_stages, self.num_meshes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedPipeline:
    """One pipeline.

    Attributes:
        shape: Its meshes.
        ways: How layers are planned.
        runs: What runs of layers cost, for each of `ways`.
        cuts: First and last layer of each stage.
        way_of_stage: For each stage its number among `ways`.
        time: Of a step by the closed form.
        least_s: No less does a simulated step take.
        peak_bytes: Of the fullest mesh, one device.
    """

    shape: Shape
    ways: tuple[Variant, ...]
    runs: tuple[RunCosts, ...]
    cuts: Ranges
    way_of_stage: tuple[int, ...]
    time: StepTime
    least_s: float
    peak_bytes: float

    @property
    def step_s(self) -> float:
        """Seconds of a step, by the closed form, but no less than it can take."""
        return max(self.time.total_s, self.least_s)

    def found(
        self, options: SearchOptions, space: str, tried: Mapping[int, float]
    ) -> FoundPipeline:
        """Return the pipeline as a search gives it.

        Args:
            options: What is searched.
            space: What was searched, in words.
            tried: Seconds of the best step for each number of micro-batches.
        """
        kind, count = self.shape.kind, self.shape.num_microbatches
        submesh = StageSubmesh(
            num_hosts=kind.num_hosts,
            devices_per_host=kind.devices_per_host,
            memory_bytes=memory_bytes(kind, options),
            reserved_bytes=_reserved_bytes(kind, options),
        )
        stages = tuple(
            StageSpan(
                first_layer=first,
                last_layer=last,
                submesh=0,
                variant=way,
                first_device=mesh * kind.num_devices,
            )
            for (first, last), mesh, way in zip(
                self.cuts, self.shape.mesh_of_stage, self.way_of_stage, strict=True
            )
        )

        def by_way(amounts: Callable[[RunCosts], Floats]) -> Floats:
            return np.stack([amounts(runs) for runs in self.runs], axis=-1)[:, :, None, :]

        return FoundPipeline(
            plan=StagePlan(
                stages=stages,
                time=self.time,
                bound_s=self.time.total_s,
                error_s=0.0,
                space=space,
            ),
            problem=StageProblem(
                costs=StageCosts(
                    submeshes=(submesh,),
                    microbatch_s=by_way(lambda runs: runs.loop_s / count),
                    once_s=by_way(lambda runs: runs.once_s),
                    resident_bytes=by_way(lambda runs: runs.resident_bytes),
                    microbatch_bytes=by_way(lambda runs: runs.microbatch_bytes),
                    temporary_bytes=by_way(lambda runs: runs.temporary_bytes),
                    gather_s=by_way(lambda runs: runs.gather_s),
                ),
                num_devices=self.shape.num_meshes * kind.num_devices,
                num_microbatches=count,
                schedule=self.shape.schedule,
            ),
            kinds=(kind,),
            variants=(self.ways,),
            tried=dict(tried),
            peak_bytes=self.peak_bytes,
        )


def chunked_pipeline(shape: Shape, way: Variant, costs: VariantCosts) -> ChunkedPipeline | None:
    """Return the best cut into stages; None if some layer has no plan.

    Args:
        shape: Meshes, micro-batches, schedule.
        way: How layers are planned.
        costs: Plans layers.
    """
    found = _best_cuts(way, shape.num_microbatches, shape.num_stages, costs)
    if found is None:
        return None
    cuts, runs = found
    return pipeline_in_ways(shape, (way,), (runs,), cuts, (0,) * shape.num_stages, costs.source)


def pipeline_in_ways(
    shape: Shape,
    ways: tuple[Variant, ...],
    runs: tuple[RunCosts, ...],
    cuts: Ranges,
    way_of_stage: tuple[int, ...],
    source: LayerSource,
) -> ChunkedPipeline:
    """Return the pipeline with these cuts and ways, with its time and memory.

    Args:
        shape: Meshes, micro-batches, schedule.
        ways: How layers are planned.
        runs: What runs of layers cost, for each of `ways`.
        cuts: First and last layer of each stage.
        way_of_stage: For each stage its number among `ways`.
        source: The layers.
    """
    stages = _Stages(
        *(
            [
                float(getattr(runs[way], name)[at])
                for at, way in zip(cuts, way_of_stage, strict=True)
            ]
            for name in _Stages._fields
        )
    )
    return ChunkedPipeline(
        shape=shape,
        ways=ways,
        runs=runs,
        cuts=cuts,
        way_of_stage=way_of_stage,
        time=_closed_form(shape, stages, _transfer_s(shape, cuts, source)),
        least_s=_least_s(shape, stages),
        peak_bytes=_peak_bytes(shape, stages),
    )


class _Stages(NamedTuple):
    """What each stage takes and holds, as `RunCosts` has it."""

    loop_s: list[float]
    gather_s: list[float]
    once_s: list[float]
    resident_bytes: list[float]
    microbatch_bytes: list[float]
    temporary_bytes: list[float]


def _closed_form(shape: Shape, stages: _Stages, sent_s: Sequence[float]) -> StepTime:
    """Seconds of a step by the closed form of the schedule."""
    count, schedule = shape.num_microbatches, shape.schedule
    computes, sends, once = ([0.0] * shape.num_meshes for _ in range(3))
    for k, mesh in enumerate(shape.mesh_of_stage):
        computes[mesh] += stages.loop_s[k] / count + stages.gather_s[k]
        sends[mesh] += sent_s[k]
        once[mesh] += stages.once_s[k]
    joined = max if schedule.hides_transfers else sum
    load = [joined(both) for both in zip(computes, sends, strict=True)]
    # What shows of a micro-batch's time while the pipeline fills and drains.
    share = float(schedule.fill_s(np.ones(())))
    return StepTime(
        fill_s=sum(load) * share,
        transfer_s=0.0,
        steady_s=(count - share) * max(load),
        once_s=max(once),
    )


def _least_s(shape: Shape, stages: _Stages) -> float:
    """Seconds that no simulated step takes less than.

    A mesh does its own work.  Where a backward pass is one task, a micro-batch passes the first
    stages of all meshes before it both ways besides, and then the first mesh ends its step.
    """
    work, once = ([0.0] * shape.num_meshes for _ in range(2))
    for k, mesh in enumerate(shape.mesh_of_stage):
        work[mesh] += stages.loop_s[k]
        once[mesh] += stages.once_s[k]
    least = max(map(sum, zip(work, once, strict=True)))
    if shape.schedule.splits_backward:
        return least
    first = [loop_s / shape.num_microbatches for loop_s in stages.loop_s[: shape.num_meshes]]
    waits = itertools.accumulate(first, initial=0.0)
    return max(least, once[0] + max(map(sum, zip(work, waits, strict=False))))


def _peak_bytes(shape: Shape, stages: _Stages) -> float:
    """Bytes of one device of the fullest mesh."""
    table = shape.schedule.table(shape.num_stages, count_at_peak(shape), shape.num_meshes)
    sizes = stages.microbatch_bytes
    # What gradients of weights wait for is not known yet.
    late = [0.0] * shape.num_stages
    peaks: list[float] = []
    for mesh in range(shape.num_meshes):
        held = held_at_peak(table, mesh, sizes, late)
        peaks.append(
            sum(
                stages.resident_bytes[k] + in_flight * sizes[k]
                for k, (in_flight, _) in held.items()
            )
            + max(stages.temporary_bytes[k] for k in held)
        )
    return max(peaks)


def count_at_peak(shape: Shape) -> int:
    """Return a number of micro-batches with which each mesh holds as much as with all of them.

    Later rounds of micro-batches only repeat the earlier ones.

    Args:
        shape: The meshes, and what they run.
    """
    schedule, meshes, every = shape.schedule, shape.num_meshes, shape.num_microbatches
    few = min(every, 2 * meshes)
    in_flight = [schedule.in_flight(meshes, meshes, count) for count in (few, every)]
    return few if in_flight[0] == in_flight[1] else every


def _best_cuts(
    way: Variant, count: int, num_stages: int, costs: VariantCosts
) -> tuple[Ranges, RunCosts] | None:
    """The best cut into stages, and the costs of those that may be among them; None without a plan.

    Runs whose bounds are far above the slowest stage's are looked at only if it takes so much.
    """
    bounds = costs.bounds(way.mesh, way.remat, count)
    if bounds is None:
        return None
    slowest = least_of_largest(bounds.loop_s, num_stages)
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


def _transfer_s(shape: Shape, cuts: Ranges, source: LayerSource) -> list[float]:
    """Seconds in which each stage sends one micro-batch on, and what comes back for it.

    Meshes lie one after another, so it is known whether two share a host.
    """
    kind, found = shape.kind, list[float]()
    for (_, last), (here, there) in zip(
        cuts, itertools.pairwise(shape.mesh_of_stage), strict=False
    ):
        if here == there:
            found.append(0.0)
            continue
        size, of_host = kind.num_devices, kind.host.num_devices
        is_inner = here * size // of_host == there * size // of_host
        rate, latency_s = bytes_per_s(kind, kind, is_inner, num_hosts=shape.num_hosts)
        num_bytes = source.crossing_bytes(last) / shape.num_microbatches
        found.append(2 * (num_bytes / rate + latency_s))
    return [*found, 0.0]


def memory_bytes(kind: SubmeshKind, options: SearchOptions) -> int:
    """Return what a device may hold, without what is left free.

    Args:
        kind: A mesh of such devices.
        options: What is searched.
    """
    has = options.memory_bytes or kind.device.memory_bytes
    return has - _reserved_bytes(kind, options)


def _reserved_bytes(kind: SubmeshKind, options: SearchOptions) -> int:
    has = options.memory_bytes or kind.device.memory_bytes
    return math.ceil(options.reserved_share * has)
