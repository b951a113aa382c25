"""Whether a pipeline fits into the memory of its devices."""

from __future__ import annotations

from meshwise.cluster.spec import Cluster
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.plan.device_memory import MemoryCheck, mesh_memories

PLAN_AGAIN = "Plan again with this version of Meshwise: earlier ones could return such pipelines."


def mesh_memory_bytes(plan: PipelinePlan) -> tuple[int, ...]:
    """Return for each mesh what a device has: the least of what its stages say."""
    least: dict[int, int] = {}
    for mesh, stage in zip(plan.mesh_of_stage, plan.stages, strict=True):
        least[mesh] = min(least.get(mesh, stage.memory_bytes), stage.memory_bytes)
    return tuple(least[mesh] for mesh in sorted(least))


def memory_holder(cluster: Cluster) -> str:
    """Return what has the memory of a mesh, as a noun: where hosts differ, its smallest device."""
    return "its smallest device" if cluster.is_mixed else f"a device of {cluster.name}"


def pipeline_memory(plan: PipelinePlan) -> MemoryCheck:
    """Compare the predicted peak of each mesh with what its devices have."""
    return MemoryCheck(
        meshes=mesh_memories(plan.mesh_of_stage, plan.mesh_peak_bytes, mesh_memory_bytes(plan)),
        holder=memory_holder(plan.cluster),
        remedy=PLAN_AGAIN,
    )
