"""Stages that have a place in a cluster, as a pipeline of the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.places import placed
from meshwise.plan.stage import Stage
from meshwise.simulate.chunks import Chunk, chunk_pipeline
from meshwise.simulate.pipeline import PricedPipeline


def stage_pipeline(
    stages: Sequence[Stage],
    cluster: ClusterSpec,
    mesh_of_stage: Sequence[int],
    *,
    hides_transfers: bool,
) -> PricedPipeline:
    """Return stages that have a place in the cluster as a pipeline.

    Args:
        stages: The stages.
        cluster: The cluster on which they run.
        mesh_of_stage: For each stage its mesh.
        hides_transfers: Whether transfers run beside computation.
    """
    places = [placed(stage, cluster) for stage in one_a_mesh(stages)]
    return chunk_pipeline(
        cluster,
        mesh_of_stage,
        [chunk_of(stage) for stage in stages],
        [(place.hosts, place.num_devices) for place in places],
        [(stage.send_bytes, stage.send_bytes) for stage in stages[:-1]],
        hides_transfers=hides_transfers,
    )


def one_a_mesh(stages: Sequence[Stage]) -> list[Stage]:
    """Return the first stage of each mesh.

    Args:
        stages: The stages of a pipeline.
    """
    found: dict[int, Stage] = {}
    for stage in stages:
        found.setdefault(stage.first_device, stage)
    return list(found.values())


def chunk_of(stage: Stage) -> Chunk:
    """Return a stage as the simulator takes it."""
    return Chunk(
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        once_s=stage.once_s,
        resident_bytes=stage.resident_bytes + stage.waiting_bytes,
        microbatch_bytes=stage.microbatch_bytes,
        temporary_bytes=stage.temporary_bytes,
        forward_gather_s=stage.forward_gather_s,
        backward_gather_s=stage.backward_gather_s,
        forward_passing=stage.forward_passing,
        backward_passing=stage.backward_passing,
        weight_s=None if stage.weights is None else stage.weights.seconds,
        weight_bytes=None if stage.weights is None else stage.weights.held_bytes,
    )
