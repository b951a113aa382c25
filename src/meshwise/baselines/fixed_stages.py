"""Stages that a rule has fixed: only what the backward pass computes again is chosen for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from meshwise.baselines.layer_costs import summed
from meshwise.baselines.restricted_stages import with_cuts
from meshwise.baselines.result import Candidate, ChosenStage, Refused
from meshwise.baselines.simulated import SimulatedPipeline
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.inter.stages.transfers import bytes_per_s
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.simulate.chunks import Chunk

# For each chunk its cost; None if a variant has no plan for it.
ChunkCosts = Sequence[Chunk | None]


def fixed_stages(
    label: str,
    kind: SubmeshKind,
    chunks: Ranges,
    ways: Sequence[Variant],
    cost: Callable[[Variant, int, int], Chunk | None],
    crossing_bytes: Sequence[float],
    *,
    num_microbatches: int,
    schedule: PipelineSchedule,
    memory_bytes: float,
) -> Candidate | Refused:
    """The best variant for each of equal meshes with given chunks.

    The first variant saves no memory and costs no time for it: where it fits, no other is asked.

    Args:
        label: Of the candidate.
        kind: What each mesh is.
        chunks: First and last layer of each chunk; with n meshes chunk k is on mesh k mod n.
        ways: The variants, from the fastest that holds most.
        cost: Of a variant on a run of layers, by its first and last layer; None without a plan.
        crossing_bytes: Bytes of one micro-batch that pass after each chunk but the last.
        num_microbatches: B.
        schedule: The schedule; its number of chunks a mesh divides the chunks.
        memory_bytes: Of one device.
    """
    known: list[tuple[Variant, ChunkCosts]] = []
    failure = ""
    for asked in (ways[:1], ways[1:]):
        known += [(way, [cost(way, *chunk) for chunk in chunks]) for way in asked]
        try:
            return _chosen(
                label,
                kind,
                chunks,
                known,
                crossing_bytes,
                num_microbatches=num_microbatches,
                schedule=schedule,
                memory_bytes=memory_bytes,
            )
        except InfeasibleError as error:
            failure = str(error)
    return Refused(label=label, why=failure)


def _chosen(
    label: str,
    kind: SubmeshKind,
    chunks: Ranges,
    costs: Sequence[tuple[Variant, ChunkCosts]],
    crossing_bytes: Sequence[float],
    *,
    num_microbatches: int,
    schedule: PipelineSchedule,
    memory_bytes: float,
) -> Candidate:
    """The same among variants whose costs are known.

    Raises:
        InfeasibleError: a chunk has no plan, or does not fit.
    """
    count = len(chunks) // schedule.chunks
    groups = [list(range(mesh, len(chunks), count)) for mesh in range(count)]
    problem = _problem(
        kind, groups, costs, crossing_bytes, num_microbatches, schedule, memory_bytes
    )
    cuts = tuple((i * schedule.chunks, (i + 1) * schedule.chunks - 1) for i in range(count))
    plan = with_cuts(problem, cuts)
    chosen = [plan.stages[k % count].variant for k in range(len(chunks))]
    picked = [costs[v][1][k] for k, v in enumerate(chosen)]
    return Candidate(
        label=label,
        objective_s=plan.total_s,
        stages=tuple(
            ChosenStage(
                first_layer=first,
                last_layer=last,
                submesh=kind.shape,
                mesh=costs[v][0].mesh.sizes,
                remat=costs[v][0].remat,
            )
            for (first, last), v in zip(chunks, chosen, strict=True)
        ),
        pipeline=SimulatedPipeline(
            chunks=tuple(c for c in picked if c is not None),
            crossing_bytes=tuple(crossing_bytes),
            meshes=(kind,) * count,
            num_microbatches=num_microbatches,
            schedule=schedule,
        ),
    )


def _problem(
    kind: SubmeshKind,
    groups: Sequence[Sequence[int]],
    costs: Sequence[tuple[Variant, ChunkCosts]],
    crossing_bytes: Sequence[float],
    num_microbatches: int,
    schedule: PipelineSchedule,
    memory_bytes: float,
) -> StageProblem:
    """A stage problem in which each chunk is a layer and only whole meshes are stages."""
    width, size = schedule.chunks, len(groups) * schedule.chunks
    names = ("microbatch_s", "gather_s", "once_s")
    names += ("resident_bytes", "microbatch_bytes", "temporary_bytes")
    arrays = {name: np.full((size, size, 1, len(costs)), np.inf) for name in names}
    for mesh, group in enumerate(groups):
        at = (mesh * width, (mesh + 1) * width - 1, 0)
        for v, (_, of_chunk) in enumerate(costs):
            found = [c for c in (of_chunk[k] for k in group) if c is not None]
            if len(found) < len(group):
                continue
            total = summed(found)
            for name in names:
                arrays[name][(*at, v)] = getattr(total, name)
    if not np.isfinite(arrays["microbatch_s"]).any():
        raise InfeasibleError("no layer has a plan on this mesh under the method's restrictions")
    submesh = StageSubmesh(
        num_hosts=kind.num_hosts,
        devices_per_host=kind.devices_per_host,
        memory_bytes=memory_bytes,
    )
    transfer = np.zeros((size - 1, 1, 1))
    if len(groups) > 1:
        rate, latency_s = bytes_per_s(kind, kind)
        for left, _ in pairwise(range(len(groups))):
            # Every chunk of a mesh sends to the next one.
            sent = [crossing_bytes[k] for k in groups[left]]
            transfer[(left + 1) * width - 1] = sum(2 * (b / rate + latency_s) for b in sent)
    return StageProblem(
        costs=StageCosts(submeshes=(submesh,), **arrays),
        num_devices=len(groups) * kind.num_devices,
        num_microbatches=num_microbatches,
        schedule=schedule,
        transfer_s=transfer,
        use_all_devices=True,
    )
