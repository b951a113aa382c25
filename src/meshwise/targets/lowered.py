"""A plan's programs, lowered for a target whose devices are not here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax

from meshwise.errors import MeshwiseError, ProgramError
from meshwise.graph.graph import Graph
from meshwise.jax_compat.compilers import module_of
from meshwise.plan.counts.walk import place
from meshwise.plan.decision import GraphDecision
from meshwise.plan.plan import Plan
from meshwise.program.layer_parts import LayerParts
from meshwise.rules import callbacks
from meshwise.runtime.pipeline.build import StageChoice, lowered_layers
from meshwise.runtime.pipeline.compiled import LoweredProgram
from meshwise.spmd.program import abstract_mesh, compile_options, jitted_step
from meshwise.targets.compiler import TargetProgram
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import TracedStep

# Autotuning runs kernels, which needs the device.  It chooses between cuBLAS and Triton for each
# product; without it all are Triton's, in tiles that do not fit some of them ("Couldn't find output
# tile sizes", jax-cuda12-pjrt 0.10.2).  With cuBLAS all compile, and none holds less.
WITHOUT_DEVICE: Mapping[str, Mapping[str, str | bool]] = MappingProxyType(
    {"cuda": {"xla_gpu_autotune_level": "0", "xla_gpu_enable_triton_gemm": False}}
)


def target_program(name: str, lowered: Any, num_devices: int, platform: str) -> TargetProgram:
    """Return a lowered program as a target's compiler takes it.

    Args:
        name: Name for messages.
        lowered: The program, lowered for the platform.
        num_devices: Devices of its mesh.
        platform: How JAX names the platform, as `cuda`.
    """
    module, digest = module_of(lowered)
    options = compile_options(platform, num_devices) | dict(WITHOUT_DEVICE.get(platform, {}))
    return TargetProgram(
        name=name, module=module, digest=digest, num_devices=num_devices, options=options
    )


def smallest_program(platform: str) -> TargetProgram:
    """Lower a sum of two numbers, by which one sees whether there is a compiler at all.

    Args:
        platform: How JAX names the platform.
    """
    number = jax.ShapeDtypeStruct((), "float32")
    lowered = (
        jax.jit(lambda a, b: a + b).trace(number, number).lower(lowering_platforms=(platform,))
    )
    return target_program("a sum of two numbers", lowered, 1, platform)


def step_program(traced: TracedStep, plan: Plan, platform: str) -> TargetProgram:
    """Lower the step of a plan on one mesh.

    Args:
        traced: The step.
        plan: Its plan.
        platform: How JAX names the platform.

    Raises:
        ProgramError: JAX does not lower it.
    """
    mesh = abstract_mesh(plan.mesh)
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.in_avals]
    with _lowering("the step", platform, traced.graph):
        jitted = jitted_step(traced, plan.decision, plan.mesh, mesh, platform)
        lowered = jitted.trace(*specs).lower(lowering_platforms=(platform,))
    return target_program("the step", lowered, plan.mesh.num_devices, platform)


@contextmanager
def _lowering(name: str, platform: str, graph: Graph | None = None) -> Iterator[None]:
    """Raise a `ProgramError` that names what is lowered, and its callbacks, whatever JAX raises."""
    try:
        yield
    except (MeshwiseError, AssertionError):
        raise
    except Exception as error:  # Of any kind: kernels and rules of lowering raise their own.
        reason = str(error) or repr(error)
        if calls := dict.fromkeys(() if graph is None else _callbacks(graph)):
            reason = (
                f"it calls Python ({', '.join(calls)}), for which the devices must be here; verify "
                f"the step without these calls (JAX: {reason})"
            )
        raise ProgramError(f"JAX does not lower {name} for {platform}: {reason}") from error


def _callbacks(graph: Graph) -> Iterator[str]:
    """Yield the places of callbacks."""
    for operator in graph.operators:
        if operator.kind in callbacks.TABLE:
            yield place(operator)
        for body in operator.bodies:
            yield from _callbacks(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLayer:
    """The programs of one layer of a pipeline, for a target.

    Attributes:
        stage: Number of its stage.
        parts: Its programs, with their lowered form, which says what they take and make.
    """

    stage: int
    parts: LayerParts[tuple[TargetProgram, LoweredProgram]]


def pipeline_programs(
    layers: Layering,
    plan: Plan,
    decisions: Sequence[Sequence[GraphDecision]],
    platforms: Sequence[str],
) -> Iterator[TargetLayer]:
    """Lower the layers of a pipeline.

    Args:
        layers: The layers of the step.
        plan: Its stages.
        decisions: For each stage those of its layers.
        platforms: How JAX names the platform of each stage.

    Yields:
        The layers in their order.

    Raises:
        ProgramError: JAX does not lower a layer.
    """
    choices = [
        StageChoice(
            first_layer=stage.first_layer,
            last_layer=stage.last_layer,
            mesh=stage.mesh,
            devices=(),
            remat=stage.remat,
            decisions=tuple(decided),
        )
        for stage, decided in zip(plan.stages, decisions, strict=True)
    ]
    schedule = plan.table()
    found = lowered_layers(
        layers,
        choices,
        plan.num_microbatches,
        [
            (abstract_mesh(stage.mesh), platform)
            for stage, platform in zip(plan.stages, platforms, strict=True)
        ],
        splits_backward=schedule.splits_backward,
        mesh_of_stage=schedule.mesh_of_stage,
    )
    stage_of = [s for s, decided in enumerate(decisions) for _ in decided]
    for k, s in enumerate(stage_of):
        platform, num_devices = platforms[s], plan.stages[s].mesh.num_devices
        with _lowering(f"layer {k}", platform):
            made = next(found)
        parts = made.parts.map(
            lambda name, part, k=k, where=(num_devices, platform): (
                target_program(f"{name} of layer {k}", part.lowered, *where),
                part,
            )
        )
        yield TargetLayer(stage=made.stage, parts=parts)
