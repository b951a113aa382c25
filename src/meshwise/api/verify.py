"""A planned step, compiled by the compiler of its target."""

from __future__ import annotations

from collections.abc import Iterable

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, PlanError
from meshwise.plan.plan import Plan
from meshwise.planner.schedule_choice import PlannedPipeline
from meshwise.planner.step import PlannedCall, PlannedProgram
from meshwise.targets.catalog import compile_target, target_of
from meshwise.targets.compile_target import CompileTarget
from meshwise.targets.compiler import Listener
from meshwise.targets.packages import installed_compiler
from meshwise.targets.verification import Verification, verify_pipeline, verify_step


def verify_planned(
    planned: PlannedCall, target: str | None = None, listener: Listener | None = None
) -> Verification:
    """Compile the programs of a plan for a target; no device is needed.

    Args:
        planned: The planned step.
        target: Name of the target, as "h100"; None: the devices of the plan.
        listener: Is told of each program that is compiled.

    Returns:
        What the compiler says, beside what was planned.

    Raises:
        ClusterError: there is no such target, its compiler is not installed, or the plan's
            devices differ or have no compiler.
        ProgramError: the compiler refuses a program.
        PlanError: the step follows a pipeline.
    """
    match planned:
        case PlannedProgram():
            where = _target("the stages run on", _devices(planned.plan), target)
            return verify_step(planned.traced, planned.plan, where, listener)
        case PlannedPipeline():
            where = _target("the stages run on", _devices(planned.plan), target)
            return verify_pipeline(planned.layers, planned.plan, planned.decisions, where, listener)
        case _:
            raise PlanError(
                "a step that follows a pipeline is not verified; verify the step that it follows"
            )


def check_target(cluster: ClusterSpec, name: str | None = None) -> None:
    """Check before planning that there will be a compiler to verify with.

    Args:
        cluster: What is planned for.
        name: Name of the target; None: the devices of the cluster.

    Raises:
        ClusterError: there is no such target, or its compiler is not installed.
    """
    found = [group.host.device.name for group in cluster.groups]
    installed_compiler(_target("the cluster has", found, name).platform)


def _target(subject: str, device_names: Iterable[str], name: str | None) -> CompileTarget:
    """Return the named target; without a name that of the devices, which must be of one kind."""
    if name is not None:
        return compile_target(name)
    devices = list(dict.fromkeys(device_names))
    if len(devices) > 1:
        raise ClusterError(
            f"{subject} {', '.join(devices)}; name one target for all, as target='h100' "
            "(--target h100)"
        )
    return target_of(devices[0])


def _devices(plan: Plan) -> list[str]:
    return [stage.mesh.device.name for stage in plan.stages]
