"""From planned layers to compiled stages on devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Remat
from meshwise.program.names import LayerSpec, Name
from meshwise.runtime.pipeline.compiled import (
    CompilationCache,
    CompiledProgram,
    LoweredProgram,
    compiled_program,
    lowered_program,
)
from meshwise.runtime.pipeline.groups import update_groups
from meshwise.spmd.backward import Readers, backward, gradient_and_weights
from meshwise.spmd.layer import DeviceProgram, LayerLowering, PlannedLayer, planned_layer
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
        decisions: Of its layers.
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
        before: Once a step, first.
        forward: For each micro-batch.
        backward: For each micro-batch.
        weights: For each micro-batch, where the schedule splits the backward pass: gradients of
            weights; None for a layer without any.
        once: After the last micro-batch, in order: values of the loss and gradients for others;
            for each phase of the update what is sent to be joined; the update.
    """

    layer: int
    stage: int
    logical: LogicalMesh
    mesh: Mesh
    planned: PlannedLayer
    before: CompiledProgram
    forward: CompiledProgram
    backward: CompiledProgram
    once: tuple[CompiledProgram, ...]
    weights: CompiledProgram | None = None

    @property
    def programs(self) -> tuple[CompiledProgram, ...]:
        """All of them, in order."""
        late = () if self.weights is None else (self.weights,)
        return (self.before, self.forward, self.backward, *late, *self.once)

    def spec(self, first: int) -> LayerSpec:
        """The layer as instructions see it; its executables are numbered from `first`."""
        found = [program.spec(first + n) for n, program in enumerate(self.programs)]
        num_passes = 3 if self.weights is None else 4
        return LayerSpec(
            stage=self.stage,
            before=found[0],
            forward=found[1],
            backward=found[2],
            weights=None if self.weights is None else found[3],
            once=tuple(found[num_passes:]),
        )


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
        layers: Of the step.
        choices: The stages, in order; together they hold every layer once.
        num_microbatches: B.
        splits_backward: Whether gradients of weights are programs of their own.
        mesh_of_stage: For each stage the number of its mesh; None: one each.

    Raises:
        ProgramError: XLA:CPU would let collectives race.
    """
    planned: list[PlannedLayer] = []
    stage_of: list[int] = []
    for s, choice in enumerate(choices):
        numbers = range(choice.first_layer, choice.last_layer + 1)
        for k, decision in zip(numbers, choice.decisions, strict=True):
            made = layers.program(k, k, num_microbatches, choice.remat)
            planned.append(planned_layer(made, decision, choice.mesh))
            stage_of.append(s)
    meshes = [concrete_mesh(choice.mesh, choice.devices) for choice in choices]
    places = range(len(choices)) if mesh_of_stage is None else mesh_of_stage
    mesh_of = [places[s] for s in stage_of]
    cache = CompilationCache()
    lies: dict[Any, tuple[int, Layout]] = {}
    for k, layer in enumerate(planned):
        for value in layer.programs.forward.outputs:
            if value.role == "leaving":
                lies[layer.leaving[value.number]] = (mesh_of[k], value.layout)
    sent_back = [{**p.cotangents_made(), **p.early_cotangents()} for p in planned]
    found: list[CompiledLayer] = []
    for k, layer in enumerate(planned):
        s = stage_of[k]
        later = {v for p in planned[k + 1 :] for v in p.entering}
        coming = {v: layout for v, (m, layout) in lies.items() if m == mesh_of[k]}
        readers: dict[Any, dict[int, Layout | None]] = {}
        for t in range(k + 1, len(planned)):
            for v, layout in sent_back[t].items():
                readers.setdefault(v, {})[t] = layout if mesh_of[t] == mesh_of[k] else None
        is_cpu = meshes[s].devices.flat[0].platform == "cpu"
        lowering = LayerLowering(layer, choices[s].mesh, coming, in_order=is_cpu)
        functions = _functions(
            lowering, layers.update.num_phases, later, readers, splits_backward=splits_backward
        )
        programs = _compiled(layers, k, lowering, functions, meshes[s], cache)
        found.append(
            CompiledLayer(
                layer=k,
                stage=s,
                logical=choices[s].mesh,
                mesh=meshes[s],
                planned=layer,
                before=programs.pop("before"),
                forward=programs.pop("forward"),
                backward=programs.pop("backward"),
                weights=programs.pop("weights", None),
                once=tuple(programs.values()),
            )
        )
    return found


def programs_alone(
    layers: Layering,
    number: int,
    made: PieceProgram,
    decision: GraphDecision,
    logical: LogicalMesh,
    mesh: Mesh,
) -> dict[str, LoweredProgram]:
    """Programs of a layer whose neighbours give and take activations as it wants them.

    Args:
        layers: Of the step.
        number: Of the layer.
        made: The layer as a program.
        decision: Its plan.
        logical: The mesh as planned.
        mesh: Its devices; it may have more axes, along which all do the same.

    Returns:
        By name, "forward" and "backward" among them; none overwrites what it is given.
    """
    layer = planned_layer(made, decision, logical)
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    lowering = LayerLowering(layer, logical, {}, in_order=is_cpu)
    crossings = zip(layer.leaving, made.graph.leaving, strict=True)
    readers = {v: {number + 1: None} for v, c in crossings if c.cotangent >= 0}
    functions = _functions(lowering, layers.update.num_phases, set(layer.leaving), readers)
    specs = _Specs(layers, layer)
    found: dict[str, LoweredProgram] = {}
    for name, function in functions.items():
        found[name] = lowered_program(function, specs, logical, mesh, overwrites=False)
        specs.known.update(zip(function.outputs, found[name].out_avals, strict=True))
    return found


def _functions(
    lowering: LayerLowering,
    num_phases: int,
    later: Collection[Any],
    readers: Readers,
    *,
    splits_backward: bool = False,
) -> dict[str, DeviceProgram]:
    """The programs of a layer by name, in the order in which one makes what others take."""
    late: DeviceProgram | None = None
    if splits_backward:
        back, late = gradient_and_weights(lowering, readers)
    else:
        back = backward(lowering, readers)
    groups = update_groups(lowering.layer, num_phases)
    names = ["values", *(f"norm {n}" for n in range(num_phases)), "apply"]
    return {
        "before": lowering.before(readers),
        "forward": lowering.forward(later),
        "backward": back,
        **({} if late is None else {"weights": late}),
        **dict(zip(names, lowering.after(groups), strict=True)),
    }


def _compiled(
    layers: Layering,
    number: int,
    lowering: LayerLowering,
    functions: Mapping[str, DeviceProgram],
    mesh: Mesh,
    cache: CompilationCache,
) -> dict[str, CompiledProgram]:
    specs = _Specs(layers, lowering.layer)
    found: dict[str, CompiledProgram] = {}
    for name, function in functions.items():
        program = compiled_program(
            f"{name} of layer {number}", function, specs, lowering.mesh, mesh, cache
        )
        specs.known.update(zip(program.outputs, program.out_avals, strict=True))
        found[name] = program
    return found


class _Specs(Mapping[Name, Any]):
    """Global shape and dtype of what the programs of a layer take."""

    def __init__(self, layers: Layering, layer: PlannedLayer) -> None:
        self.layers = layers
        self.known: dict[Name, Any] = {}
        self.micro: dict[Any, Any] = {}
        self.rows: dict[int, Any] = {}
        made = layer.made.graph
        graph = made.graph
        for i, argument in enumerate(layer.made.arguments):
            if i in made.batch_dims:
                shape = graph.tensors[graph.inputs[i]].shape
                dtype = layers.split.in_avals[argument].dtype
                self.rows[argument] = jax.ShapeDtypeStruct(shape, dtype)
        for v, c in zip(layer.entering, made.entering, strict=True):
            self.micro[v] = graph.tensors[graph.inputs[c.value]]
        for v, c in zip(layer.leaving, made.leaving, strict=True):
            self.micro.setdefault(v, graph.tensors[graph.outputs[c.value]])

    def __getitem__(self, name: Name) -> Any:
        match name.kind:
            case "argument":
                aval = self.layers.split.in_avals[name.what]
            case "rows":
                return self.rows[name.what]
            case "gradient":
                aval = self.layers.split.roots[name.what].aval
            case "value":
                aval = self.layers.update.values[name.what].aval
            case "shared":
                aval = name.what.aval
            case "activation":
                return self._rows(name.what)
            case "cotangent":
                return self._rows(name.what[0])
            case "index":
                return jax.ShapeDtypeStruct((), np.int32)
            case _:
                return self.known[name]
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    def _rows(self, variable: Any) -> Any:
        # What crosses a cut once a step is no row of a micro-batch.
        shape = self.micro.get(variable, variable.aval).shape
        return jax.ShapeDtypeStruct(shape, variable.aval.dtype)

    def __iter__(self) -> Iterator[Name]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)
