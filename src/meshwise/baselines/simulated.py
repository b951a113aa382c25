"""One step of a pipeline as the simulator sees it, from the costs of its chunks.

A chunk is a run of layers.  A mesh has one, or several with interleaving: chunk k of n meshes runs
on mesh k mod n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshwise.baselines.layer_costs import RunCost
from meshwise.cluster.spec import Cluster
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.flows import flows_between, host_links
from meshwise.inter.pipeline_schedule import PipelineSchedule
from meshwise.inter.placement import place_stages
from meshwise.schedules import interleaved, one_f_one_b, registry
from meshwise.schedules.eager_one_f_one_b import NAME as EAGER
from meshwise.simulate.pipeline import simulate_pipeline
from meshwise.simulate.stages import Boundary, Crossing, StageCost
from meshwise.simulate.timeline import Timeline

_NAMES = {
    "1f1b": one_f_one_b.NAME,
    "alpa": one_f_one_b.NAME,
    "gpipe": "gpipe",
    "eager": EAGER,
    "interleaved": interleaved.NAME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Runs of layers on meshes.

    Attributes:
        chunks: Their costs, in the order of the layers.
        crossing_bytes: Bytes of one micro-batch that pass after each chunk but the last.
        meshes: What each mesh is; chunk k runs on mesh k mod n.
        num_microbatches: B.
        schedule: Of the stage construction.
    """

    chunks: tuple[RunCost, ...]
    crossing_bytes: tuple[float, ...]
    meshes: tuple[SubmeshKind, ...]
    num_microbatches: int
    schedule: PipelineSchedule


def simulate(pipeline: Pipeline, cluster: Cluster) -> Timeline:
    """One step on a cluster of equal hosts.

    Raises:
        ClusterError: hosts differ.
        PlanError: the schedule does not allow these sizes.
    """
    schedule = registry.make_schedule(
        _NAMES[pipeline.schedule.name],
        num_stages=len(pipeline.chunks),
        num_microbatches=pipeline.num_microbatches,
        num_meshes=len(pipeline.meshes),
    )
    hosts = _hosts_of(pipeline.meshes, cluster)
    ends = [(h, kind.devices_per_host) for h, kind in zip(hosts, pipeline.meshes, strict=True)]
    meshes = [k % len(pipeline.meshes) for k in range(len(pipeline.chunks))]
    boundaries = [
        Boundary(
            source=k,
            destination=k + 1,
            forward=Crossing(flows=flows_between(cluster, ends[a], ends[b], num_bytes)),
            backward=Crossing(flows=flows_between(cluster, ends[b], ends[a], num_bytes)),
        )
        for k, ((a, b), num_bytes) in enumerate(
            zip(pairwise(meshes), pipeline.crossing_bytes, strict=True)
        )
        if a != b
    ]
    return simulate_pipeline(
        schedule,
        [_stage(chunk) for chunk in pipeline.chunks],
        boundaries,
        host_links(cluster),
        overlap=pipeline.schedule.hides_transfers,
    )


def _stage(chunk: RunCost) -> StageCost:
    temporary = round(chunk.temporary_bytes)
    return StageCost(
        forward_s=chunk.forward_s,
        backward_s=chunk.microbatch_s - chunk.forward_s,
        apply_s=chunk.once_s,
        resident_bytes=round(chunk.resident_bytes),
        held_bytes=round(chunk.microbatch_bytes),
        forward_temporary_bytes=temporary,
        backward_temporary_bytes=temporary,
        apply_temporary_bytes=temporary,
    )


def _hosts_of(meshes: Sequence[SubmeshKind], cluster: Cluster) -> list[range]:
    """The hosts of each mesh."""
    if len(meshes) == 1:
        return [range(meshes[0].num_hosts)]
    size = cluster.devices_per_host
    starts = place_stages([kind.shape for kind in meshes], cluster.num_hosts, size)
    return [
        range(start // size, start // size + kind.num_hosts)
        for start, kind in zip(starts, meshes, strict=True)
    ]
