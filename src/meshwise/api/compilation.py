"""A planned step -> what runs it."""

from __future__ import annotations

from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.step import PlannedCall, PlannedProgram
from meshwise.runtime.executable import compile_step
from meshwise.runtime.forward import compile_forward
from meshwise.runtime.job.job import Job
from meshwise.runtime.pipeline.executable import compile_pipeline
from meshwise.runtime.step_executable import StepExecutable
from meshwise.trace.layers.forward.followed import FollowedStages


def compile_planned(planned: PlannedCall, job: Job | None = None) -> StepExecutable:
    """Lower and compile a planned step.

    Args:
        planned: The planned step.
        job: The processes on whose devices it runs; None: those of this process.

    Raises:
        ClusterError: the plan needs more devices than there are.
        TraceError: a value crosses a cut in a way that cannot be run yet.
        ProgramError: XLA:CPU would let collectives race, or buffers need more memory than a device
            of the plan's cluster has.
    """
    match planned:
        case PlannedProgram():
            return compile_step(planned.traced, planned.plan, job=job)
        case PlannedPipeline():
            return compile_pipeline(planned.layers, planned.plan, planned.decisions, job)
        case FollowedStages():
            return compile_forward(planned, job)
        case _:
            raise TypeError(f"{type(planned).__name__} is not a planned step")
