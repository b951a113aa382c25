"""Stages that a rule has fixed, as a problem of stage construction: its formulas price them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwise.baselines.pipelines.layer_costs import summed
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.inter.stages.transfers import bytes_per_s
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.simulate.chunks import Chunk

# For each chunk its cost; None if a variant has no plan for it.
ChunkCosts = Sequence[Chunk | None]
_COSTS = (
    "microbatch_s", "gather_s", "once_s", "resident_bytes", "microbatch_bytes", "temporary_bytes"
)  # fmt: skip


def fixed_problem(
    chunks: Ranges,
    costs: Sequence[ChunkCosts],
    kind: SubmeshKind,
    crossing_bytes: Sequence[float],
    *,
    num_microbatches: int,
    schedule: PipelineSchedule,
    memory_bytes: float,
) -> StageProblem:
    """Return a problem in which each chunk is a layer, and only whole meshes are stages.

    Args:
        chunks: First and last layer of each chunk; with n meshes chunk k is on mesh k mod n.
        costs: For each variant the costs of the chunks.
        kind: What each mesh is.
        crossing_bytes: Bytes of one micro-batch that pass after each chunk but the last.
        num_microbatches: B.
        schedule: The schedule; its number of chunks a mesh divides the chunks.
        memory_bytes: Memory of one device.

    Raises:
        InfeasibleError: no variant has a plan for all chunks of any mesh.
    """
    width, size = schedule.chunks, len(chunks)
    count = size // width
    arrays = {name: np.full((size, size, 1, len(costs)), np.inf) for name in _COSTS}
    for mesh in range(count):
        at = (mesh * width, (mesh + 1) * width - 1, 0)
        for v, of_chunk in enumerate(costs):
            found = [c for c in of_chunk[mesh::count] if c is not None]
            if len(found) < width:
                continue
            total = summed(found)
            for name in _COSTS:
                arrays[name][(*at, v)] = getattr(total, name)
    if not np.isfinite(arrays["microbatch_s"]).any():
        raise InfeasibleError("no layer has a plan on this mesh under the method's restrictions")
    submesh = StageSubmesh(
        num_hosts=kind.num_hosts, devices_per_host=kind.devices_per_host, memory_bytes=memory_bytes
    )
    transfer = np.zeros((size - 1, 1, 1))
    if count > 1:
        rate, latency_s = bytes_per_s(kind, kind)
        for left in range(count - 1):
            # Every chunk of a mesh sends to the next one.
            sent = crossing_bytes[left::count]
            transfer[(left + 1) * width - 1] = sum(2 * (b / rate + latency_s) for b in sent)
    return StageProblem(
        costs=StageCosts(submeshes=(submesh,), **arrays),
        num_devices=count * kind.num_devices,
        num_microbatches=num_microbatches,
        schedule=schedule,
        transfer_s=transfer,
        use_all_devices=True,
    )
