"""A decided step as an XLA executable that does what was written.

Faults of XLA:CPU show in the schedule of the executable: collectives that race with a loop before
them, which the lowering prevents, and donated arguments that are overwritten before they are read.
Against both the step is compiled again where need be.
"""

from __future__ import annotations

import hashlib

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import ProgramError
from meshwise.jax_compat.arrays import with_checked_layouts
from meshwise.plan.decision import GraphDecision
from meshwise.runtime.devices import has_devices_here
from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.overlap import overlapping
from meshwise.runtime.hlo.overwrite import overwritten_too_early
from meshwise.runtime.job.agreement import check_agreement
from meshwise.runtime.job.job import Job
from meshwise.spmd.program import jitted_step
from meshwise.trace.step import TracedStep


def compile_decided(
    traced: TracedStep,
    decision: GraphDecision,
    logical: LogicalMesh,
    mesh: Mesh,
    job: Job | None = None,
) -> Compiled | None:
    """Lower and compile a step for concrete devices.

    Args:
        traced: The step.
        decision: The decision of the planner.
        logical: The mesh as planned.
        mesh: The devices of the mesh.
        job: The processes that run it together; None: this process alone.

    Returns:
        The executable on flat arguments; None where no device of the mesh is of this process.

    Raises:
        ProgramError: XLA does not compile it, or on XLA:CPU collectives would race.
        ClusterError: the processes have lowered different programs.
    """
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.in_avals]
    platform = mesh.devices.flat[0].platform
    lowered = jitted_step(traced, decision, logical, mesh, platform).lower(*specs)
    if job is not None:
        digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()[:16]
        check_agreement(job, "the program of the step", {"its text": digest})
    if not has_devices_here(mesh):
        return None
    try:
        return checked(lowered, mesh.devices, "the step")
    except _RaceError:
        # XLA knows what becomes of the little that is read of a loop.
        jitted = jitted_step(traced, decision, logical, mesh, platform, reads_all=True)
        return checked(jitted.lower(*specs), mesh.devices, "the step")


class _RaceError(ProgramError):
    """Collectives do not wait for the loop before them."""


def checked(lowered: Lowered, devices: np.ndarray, name: str) -> Compiled:
    """Return the executable of a lowered program that does what was written.

    Args:
        lowered: The program.
        devices: The devices of its mesh, an array of them.
        name: The name for messages.

    Raises:
        ProgramError: XLA does not compile it, or on XLA:CPU collectives would race.
    """
    platform = devices.flat[0].platform
    compiled = _compiled(lowered, name, platform)
    if platform != "cpu" or devices.size == 1:
        return compiled
    text = compiled.as_text() or ""
    module = parse_module(text)
    racing = overlapping(module)
    if racing:
        raise _RaceError(
            f"on XLA:CPU the collectives {', '.join(racing)} of {name} do not wait for the loop "
            "before them and may hang; please report this program. Another method or mesh gives "
            "another one"
        )
    if overwritten_too_early(text, module):
        options: dict[str, str | bool] = {"xla_cpu_copy_insertion_use_region_analysis": False}
        return _compiled(lowered, name, platform, options)
    return compiled


def _compiled(
    lowered: Lowered, name: str, platform: str, options: dict[str, str | bool] | None = None
) -> Compiled:
    try:
        return with_checked_layouts(lowered.compile(compiler_options=options))
    except jax.errors.JaxRuntimeError as error:
        said = str(error).partition("\n")[0]
        raise ProgramError(
            f"XLA does not compile {name} for {platform} devices: {said}; where the operation or "
            "the type is the reason, jax.jit fails too"
        ) from error
