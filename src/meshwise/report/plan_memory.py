"""Whether a plan of either kind, or a simulated step of a pipeline, fits into memory."""

from __future__ import annotations

from meshwise.inter.pipeline_memory import PLAN_AGAIN, memory_holder, pipeline_memory
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.inter.simulated_plan import Simulation
from meshwise.plan.device_memory import MemoryCheck, mesh_memories, plan_memory
from meshwise.report.plan_file import AnyPlan

_PLAN_WITH_CHANGES = (
    "The stages are those of the plan: plan with this cluster, schedule and number of "
    "micro-batches for stages that fit."
)


def memory_check(plan: AnyPlan) -> MemoryCheck:
    """Compare the predicted peaks of a plan with what its devices have."""
    return pipeline_memory(plan) if isinstance(plan, PipelinePlan) else plan_memory(plan)


def simulated_memory(plan: PipelinePlan, simulation: Simulation) -> MemoryCheck:
    """Compare the peaks of a simulated step with what the devices have.

    A plan that is simulated as it is and does not fit by its own prediction does not fit, whatever
    the simulation says.

    Args:
        plan: The pipeline.
        simulation: A step of it.
    """
    is_changed = (simulation.cluster, simulation.schedule, simulation.num_microbatches) != (
        plan.cluster,
        plan.schedule,
        plan.num_microbatches,
    )
    predicted = pipeline_memory(plan)
    if not is_changed and not predicted.fits:
        return predicted
    return MemoryCheck(
        meshes=mesh_memories(
            simulation.mesh_of_stage, simulation.timeline.peak_bytes, simulation.memory_bytes
        ),
        holder=memory_holder(simulation.cluster),
        remedy=_PLAN_WITH_CHANGES if is_changed else PLAN_AGAIN,
    )
