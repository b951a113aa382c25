"""Whether a simulated step of a plan fits into memory."""

from __future__ import annotations

from meshwise.plan.plan import Plan
from meshwise.plan.text.device_memory import (
    PLAN_AGAIN,
    MemoryCheck,
    memory_holder,
    mesh_memories,
    plan_memory,
)
from meshwise.simulate.plan import Simulation

_PLAN_WITH_CHANGES = (
    "The stages are those of the plan: plan with this cluster, schedule and number of "
    "micro-batches for stages that fit."
)


def simulated_memory(plan: Plan, simulation: Simulation) -> MemoryCheck:
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
    predicted = plan_memory(plan)
    if not is_changed and not predicted.fits:
        return predicted
    return MemoryCheck(
        meshes=mesh_memories(
            simulation.mesh_of_stage, simulation.timeline.peak_bytes, simulation.memory_bytes
        ),
        holder=memory_holder(plan, simulation.cluster),
        remedy=_PLAN_WITH_CHANGES if is_changed else PLAN_AGAIN,
    )
