"""From planned layers to compiled stages on devices."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from meshwise.cluster.mesh import LogicalMesh
from meshwise.pieces.neighbours import Neighbours, Readers
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Remat
from meshwise.program.layer_parts import LayerParts
from meshwise.program.names import (
    Activation,
    Cotangent,
    CotangentSum,
    CotangentTerm,
    LayerSpec,
    Local,
    MicrobatchIndex,
    Name,
    Rows,
    StepArgument,
    StepValue,
)
from meshwise.runtime.pipeline.compiled import (
    CompilationCache,
    CompiledProgram,
    LoweredProgram,
    compiled_program,
    lowered_program,
    platform_of,
)
from meshwise.spmd.backward import backward, gradient_and_weights
from meshwise.spmd.layer import (
    DeviceProgram,
    LayerLowering,
    PlannedLayer,
    planned_layer,
)
from meshwise.spmd.program import concrete_mesh
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.planned import PieceProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChoice:
    """A stage as it was decided.

    Attributes:
        first_layer: First layer.
        last_layer: Last layer, included.
        mesh: Its logical mesh.
        devices: Its devices, row-major.
        remat: What its backward pass computes again.
        decisions: The decisions about its layers.
    """

    first_layer: int
    last_layer: int
    mesh: LogicalMesh
    devices: tuple[Any, ...]
    remat: Remat
    decisions: tuple[GraphDecision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLayer:
    """One layer of a stage, ready to run.

    Layers are programs of their own: equal ones share an executable, and what one needs while it
    runs is gone when the next one starts.

    Attributes:
        layer: Its number.
        stage: Number of its stage.
        logical: The mesh of its stage as planned.
        mesh: Its devices as a JAX mesh.
        planned: The layer with its plan.
        parts: Its executables.
    """

    layer: int
    stage: int
    logical: LogicalMesh
    mesh: Mesh
    planned: PlannedLayer
    parts: LayerParts[CompiledProgram]

    def spec(self, first: int) -> LayerSpec:
        """Return the layer as instructions see it; its executables are numbered from `first`."""
        numbers = itertools.count(first)
        return LayerSpec(stage=self.stage, parts=self.parts.map(lambda _, p: p.spec(next(numbers))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredLayer:
    """One layer of a stage before it is compiled.

    Attributes:
        layer: Its number.
        stage: Number of its stage.
        planned: The layer with its plan.
        parts: Its programs.
    """

    layer: int
    stage: int
    planned: PlannedLayer
    parts: LayerParts[LoweredProgram]


def compiled_layers(
    layers: Layering,
    choices: Sequence[StageChoice],
    num_microbatches: int,
    *,
    splits_backward: bool = False,
    mesh_of_stage: Sequence[int] | None = None,
) -> list[CompiledLayer]:
    """Lower and compile all layers.

    Args:
        layers: The layers of the step.
        choices: The stages, in order; together they hold every layer once.
        num_microbatches: B.
        splits_backward: Whether gradients of weights are programs of their own.
        mesh_of_stage: For each stage the number of its mesh; None: one each.

    Raises:
        ProgramError: XLA:CPU would let collectives race.
    """
    meshes = [concrete_mesh(choice.mesh, choice.devices) for choice in choices]
    cache = CompilationCache()
    found: list[CompiledLayer] = []
    for made in lowered_layers(
        layers,
        choices,
        num_microbatches,
        [(mesh, platform_of(mesh)) for mesh in meshes],
        splits_backward=splits_backward,
        mesh_of_stage=mesh_of_stage,
    ):
        k, mesh = made.layer, meshes[made.stage]
        parts = made.parts.map(
            lambda name, part, k=k, mesh=mesh: compiled_program(
                f"{name} of layer {k}", part, mesh, cache
            )
        )
        found.append(
            CompiledLayer(
                layer=k,
                stage=made.stage,
                logical=choices[made.stage].mesh,
                mesh=mesh,
                planned=made.planned,
                parts=parts,
            )
        )
    return found


def lowered_layers(
    layers: Layering,
    choices: Sequence[StageChoice],
    num_microbatches: int,
    places: Sequence[tuple[Mesh | AbstractMesh, str]],
    *,
    splits_backward: bool = False,
    mesh_of_stage: Sequence[int] | None = None,
) -> Iterator[LoweredLayer]:
    """Lower all layers.

    Args:
        layers: The layers of the step.
        choices: The stages, in order; together they hold every layer once.
        num_microbatches: B.
        places: For each stage its mesh, with devices or without, and their platform, as "cpu".
        splits_backward: Whether gradients of weights are programs of their own.
        mesh_of_stage: For each stage the number of its mesh; None: one each.

    Yields:
        The layers in their order.
    """
    planned = [
        planned_layer(layers.program(k, k, num_microbatches, choice.remat), decision, choice.mesh)
        for choice in choices
        for k, decision in enumerate(choice.decisions, start=choice.first_layer)
    ]
    stage_of = [s for s, choice in enumerate(choices) for _ in choice.decisions]
    numbers = range(len(choices)) if mesh_of_stage is None else mesh_of_stage
    neighbours = Neighbours(planned, [numbers[s] for s in stage_of])
    for k, (layer, s) in enumerate(zip(planned, stage_of, strict=True)):
        mesh, platform = places[s]
        lowering = LayerLowering(
            layer,
            choices[s].mesh,
            neighbours.coming(k),
            neighbours.carried(k),
            in_order=platform == "cpu",
        )
        functions = _functions(
            lowering,
            neighbours.read_later(k),
            neighbours.readers(k),
            splits_backward=splits_backward,
        )
        parts = _lowered(lowering, functions, mesh, platform)
        yield LoweredLayer(layer=k, stage=s, planned=layer, parts=parts)


def programs_alone(
    number: int, made: PieceProgram, decision: GraphDecision, logical: LogicalMesh, mesh: Mesh
) -> LayerParts[LoweredProgram]:
    """Lower a layer whose neighbours give and take activations as it wants them.

    Args:
        number: The number of the layer.
        made: The layer as a program.
        decision: Its plan.
        logical: The mesh as planned.
        mesh: Its devices; it may have more axes, along which all do the same.

    Returns:
        Its programs; none overwrites what it is given.
    """
    layer = planned_layer(made, decision, logical)
    platform = platform_of(mesh)
    lowering = LayerLowering(layer, logical, {}, {}, in_order=platform == "cpu")
    crossings = zip(layer.names.leaving, made.graph.leaving, strict=True)
    readers = {a: {number + 1: None} for a, c in crossings if c.cotangent >= 0}
    functions = _functions(lowering, set(layer.names.leaving), readers)
    return _lowered(lowering, functions, mesh, platform, overwrites=False)


def _functions(
    lowering: LayerLowering,
    later: Collection[Activation],
    readers: Readers,
    *,
    splits_backward: bool = False,
) -> LayerParts[DeviceProgram]:
    """Return the programs of a layer on the tiles of one device."""
    late: DeviceProgram | None = None
    if splits_backward:
        back, late = gradient_and_weights(lowering, readers)
    else:
        back = backward(lowering, readers)
    return LayerParts(
        before=lowering.before(readers),
        forward=lowering.forward(later),
        backward=back,
        weights=late,
        once=lowering.once(),
    )


def _lowered(
    lowering: LayerLowering,
    functions: LayerParts[DeviceProgram],
    mesh: Mesh | AbstractMesh,
    platform: str,
    *,
    overwrites: bool = True,
) -> LayerParts[LoweredProgram]:
    specs = _Specs(lowering.layer)

    def lowered(_: str, function: DeviceProgram) -> LoweredProgram:
        made = lowered_program(
            function, specs, lowering.mesh, mesh, platform=platform, overwrites=overwrites
        )
        specs.add(function.outputs, made.out_avals)
        return made

    return functions.map(lowered)


class _Specs:
    """Global shape and dtype of what the programs of a layer take."""

    def __init__(self, layer: PlannedLayer) -> None:
        made = layer.made
        piece, avals = made.graph, made.program.avals
        self._made: dict[Name, jax.ShapeDtypeStruct] = {}
        self._step: dict[StepValue, jax.ShapeDtypeStruct] = {}
        inputs = zip(made.inputs.in_order(), piece.graph.inputs, strict=True)
        results = zip(made.results.in_order(), piece.graph.outputs, strict=True)
        specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        for i, (value, t) in enumerate(inputs):
            if i in piece.batch_dims and isinstance(value, StepArgument):
                self._step[Rows(value.number)] = specs[t]
            else:
                self._step[value] = specs[t]
        for value, t in results:
            self._step.setdefault(value, specs[t])

    def add(self, names: Sequence[Name], avals: Sequence[jax.ShapeDtypeStruct]) -> None:
        """Remember what a program makes."""
        self._made.update(zip(names, avals, strict=True))

    def __call__(self, name: Name) -> jax.ShapeDtypeStruct:
        match name.value:
            case CotangentTerm(activation=activation) | Cotangent(activation=activation):
                return self._step[activation]
            case MicrobatchIndex():
                return jax.ShapeDtypeStruct((), np.int32)
            case Local() | CotangentSum():
                return self._made[name]
            case value:
                return self._step[value]
