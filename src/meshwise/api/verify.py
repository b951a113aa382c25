"""A planned step, compiled by the compiler of its target."""

from __future__ import annotations

from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.plan.plan import Plan
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.step import PlannedCall, PlannedProgram
from meshwise.targets.catalog import compile_target, target_of
from meshwise.targets.compile_target import CompileTarget
from meshwise.targets.compiler import Listener, compile_programs
from meshwise.targets.lowered import smallest_program
from meshwise.targets.verification import Verification, verify_pipeline, verify_step


def verify_planned(
    planned: PlannedCall, target: str | None = None, listener: Listener | None = None
) -> Verification:
    """Compile the programs of a plan for a target; no device is needed.

    Args:
        planned: The planned step.
        target: Name of one target for all devices, as "h100"; None: those of the plan.
        listener: Is told of each program that is compiled.

    Returns:
        What the compiler says, beside what was planned.

    Raises:
        ClusterError: there is no such target, its compiler is not installed or takes no mesh of so
            many devices, or devices of the plan have no compiler.
        ProgramError: the compiler refuses a program.
        PlanError: the step follows a pipeline.
    """
    match planned:
        case PlannedProgram():
            (where,) = _targets(planned.plan, target)
            return verify_step(planned.traced, planned.plan, where, listener)
        case PlannedPipeline():
            where = _targets(planned.plan, target)
            return verify_pipeline(planned.layers, planned.plan, planned.decisions, where, listener)
        case _:
            raise PlanError(
                "a step that follows a pipeline is not verified; verify the step that it follows"
            )


def check_target(cluster: ClusterSpec, name: str | None = None) -> None:
    """Check before planning that there will be a compiler to verify with: it compiles a sum.

    Args:
        cluster: What is planned for.
        name: Name of one target for all devices; None: those of the cluster.

    Raises:
        ClusterError: there is no such target, its compiler is not installed, or devices of the
            cluster have none.
        ProgramError: the compiler takes no program for it.
    """
    targets = [_target(group.host.device, name) for group in cluster.groups]
    for target in {target.name: target for target in targets}.values():
        compile_programs(target, [smallest_program(target.platform)])


def _targets(plan: Plan, name: str | None) -> list[CompileTarget]:
    """Return the target of each stage; its compiler takes the devices of the stage."""
    found = [_target(stage.mesh.device, name) for stage in plan.stages]
    for stage, target in zip(plan.stages, found, strict=True):
        target.slice(stage.mesh.num_devices)
    return found


def _target(device: DeviceSpec, name: str | None) -> CompileTarget:
    """Return the named target; without a name that of the device."""
    return target_of(device.name) if name is None else compile_target(name)
