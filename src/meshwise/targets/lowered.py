"""A plan's programs, lowered for a target whose devices are not here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax

from meshwise.jax_compat import module_of
from meshwise.plan.plan import Plan
from meshwise.spmd.program import abstract_mesh, compile_options, jitted_step
from meshwise.targets.compiler import TargetProgram
from meshwise.trace.step import TracedStep

# Autotuning runs kernels, which needs the device.
_WITHOUT_DEVICE: Mapping[str, Mapping[str, str | bool]] = MappingProxyType(
    {"cuda": MappingProxyType({"xla_gpu_autotune_level": "0"}), "tpu": MappingProxyType({})}
)


def target_program(name: str, lowered: Any, num_devices: int, platform: str) -> TargetProgram:
    """Return a lowered program as a target's compiler takes it.

    Args:
        name: Name for messages.
        lowered: The program, lowered for the platform.
        num_devices: Devices of its mesh.
        platform: `cuda` or `tpu`.
    """
    module, digest = module_of(lowered)
    options = compile_options(platform, num_devices) | dict(_WITHOUT_DEVICE[platform])
    return TargetProgram(
        name=name, module=module, digest=digest, num_devices=num_devices, options=options
    )


def step_program(traced: TracedStep, plan: Plan, platform: str) -> TargetProgram:
    """Lower the step of a plan on one mesh.

    Args:
        traced: The step.
        plan: Its plan.
        platform: `cuda` or `tpu`.
    """
    mesh = abstract_mesh(plan.mesh)
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.in_avals]
    jitted = jitted_step(traced, plan.decision, plan.mesh, mesh, platform)
    lowered = jitted.trace(*specs).lower(lowering_platforms=(platform,))
    return target_program("the step", lowered, plan.mesh.num_devices, platform)
