"""Pipelines of baselines for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.stages.placement import place_stages
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.simulate.chunks import Chunk, chunk_pipeline
from meshwise.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPipeline:
    """Runs of layers on meshes.

    Attributes:
        chunks: Their costs, in the order of the layers.
        crossing_bytes: Bytes of one micro-batch that pass after each chunk but the last.
        meshes: What each mesh is; chunk k runs on mesh k mod n.
        num_microbatches: B.
        schedule: Of the stage construction.
    """

    chunks: tuple[Chunk, ...]
    crossing_bytes: tuple[float, ...]
    meshes: tuple[SubmeshKind, ...]
    num_microbatches: int
    schedule: PipelineSchedule


def simulate(pipeline: SimulatedPipeline, cluster: ClusterSpec) -> Timeline:
    """One step on a cluster of equal hosts.

    Raises:
        ClusterError: hosts differ.
        PlanError: the schedule does not allow these sizes.
    """
    hosts = _hosts_of(pipeline.meshes, cluster)
    num_meshes = len(pipeline.meshes)
    table = pipeline.schedule.table(len(pipeline.chunks), pipeline.num_microbatches, num_meshes)
    return chunk_pipeline(
        cluster,
        table.mesh_of_stage,
        pipeline.chunks,
        [(h, kind.devices_per_host) for h, kind in zip(hosts, pipeline.meshes, strict=True)],
        [(num_bytes, num_bytes) for num_bytes in pipeline.crossing_bytes],
        hides_transfers=pipeline.schedule.hides_transfers,
    ).simulate(table)


def _hosts_of(meshes: Sequence[SubmeshKind], cluster: ClusterSpec) -> list[range]:
    """Return the hosts of each mesh."""
    if len(meshes) == 1:
        return [range(meshes[0].num_hosts)]
    size = cluster.devices_per_host
    starts = place_stages([kind.shape for kind in meshes], cluster.num_hosts, size)
    return [
        range(start // size, start // size + kind.num_hosts)
        for start, kind in zip(starts, meshes, strict=True)
    ]
