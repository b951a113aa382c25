"""Layers, a schedule and a number of micro-batches -> the instructions of every mesh.

Tasks are taken in an order in which one thread can dispatch them; what a task makes for another
mesh is sent at once, and received right before it is needed.  A buffer is freed after its last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from meshwise.errors import PlanError
from meshwise.graph.layout import Layout
from meshwise.program.instructions import (
    Instruction,
    Load,
    MeshProgram,
    PipelineProgram,
    Receive,
    Run,
    Send,
)
from meshwise.program.lifetimes import with_frees
from meshwise.program.names import (
    Activation,
    Cotangent,
    CotangentTerm,
    Gradient,
    LayerSpec,
    Local,
    LossValue,
    MicrobatchIndex,
    Name,
    ProgramSpec,
    Rows,
    SentValue,
    SharedValue,
    StepArgument,
    StepResult,
)
from meshwise.schedules.schedule import FORWARD, Schedule, Task
from meshwise.schedules.verify import running_order

ONCE = -1
_Value = TypeVar("_Value", Activation, CotangentTerm)

# A value on its mesh: its name, with its layer and its micro-batch where these tell it from others.
Key: TypeAlias = tuple[Name, int, int]
# A mesh and one of its buffers.
Place: TypeAlias = tuple[int, int]
# What only one micro-batch of a layer has.
_OF_MICROBATCH = frozenset(("kept", "entering", "delayed", "total"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSpec:
    """The executables that join layers, on mesh 0.

    Attributes:
        joins: For each phase of the update the executable that joins what layers send.
        common: The executable that makes the results of the step that no layer makes.
        values: For each activation that is a value of the loss the numbers of that value.
        adders: For tied parameters with several senders the executable that adds gradients up.
        passed: Pairs (result, argument) of results that are arguments.
    """

    joins: tuple[ProgramSpec, ...]
    common: ProgramSpec
    values: Mapping[Activation, tuple[int, ...]]
    adders: Mapping[int, ProgramSpec]
    passed: tuple[tuple[int, int], ...]


def emit(
    layers: Sequence[LayerSpec],
    update: UpdateSpec,
    schedule: Schedule,
) -> PipelineProgram:
    """Return the program of a pipeline.

    Args:
        layers: In order.
        update: What joins them.
        schedule: Who runs what in which order.

    Raises:
        PlanError: the schedule has no backward pass.
        ProgramError: the schedule waits for itself.
    """
    if schedule.forward_only:
        raise PlanError(
            f"the schedule {schedule.name} has no backward pass, and a step needs one; use 1f1b or "
            "another that trains"
        )
    emitter = _Emitter(layers, update, schedule)
    emitter.begin()
    for mesh, position in running_order(schedule):
        emitter.task(schedule.tasks[mesh][position])
    emitter.update_all()
    return emitter.finished()


@dataclass(slots=True)
class _Mesh:
    """One mesh while its list grows."""

    loads: list[Load] = field(default_factory=list[Load])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    results: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    buffers: dict[Key, int] = field(default_factory=dict[Key, int])
    coming: dict[Key, Place] = field(default_factory=dict[Key, Place])
    count: int = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1


@dataclass(slots=True)
class _Once:
    """Where the values of the update are."""

    values: dict[LossValue | SharedValue | SentValue, Place] = field(
        default_factory=dict[LossValue | SharedValue | SentValue, Place]
    )
    gradients: dict[Gradient, list[Place]] = field(default_factory=dict[Gradient, list[Place]])


class _Emitter:
    """The program while it grows; lives only inside `emit`."""

    def __init__(self, layers: Sequence[LayerSpec], update: UpdateSpec, schedule: Schedule) -> None:
        self.layers, self.update = layers, update
        self.meshes = [_Mesh() for _ in schedule.tasks]
        self.mesh_of_stage = schedule.mesh_of_stage
        self.mesh_of = [schedule.mesh_of_stage[layer.stage] for layer in layers]
        self.order: list[int] = []
        self.transfers = 0
        self.maker = {
            made: k
            for k, layer in enumerate(layers)
            for _, made in _of_kind(
                Activation, layer.parts.forward.outputs, layer.parts.once[0].outputs
            )
        }
        # Which meshes want an activation, and how: those of each micro-batch, and those of a step.
        self.wanted: dict[Activation, dict[tuple[int, Layout], None]] = {}
        self.wanted_once: dict[Activation, dict[tuple[int, Layout], None]] = {}
        for layer, mesh in zip(layers, self.mesh_of, strict=True):
            for n, value in _of_kind(Activation, layer.parts.once[0].inputs):
                self.wanted_once.setdefault(value, {})[mesh, n.layout] = None
            for n, value in _of_kind(Activation, *(p.inputs for p in layer.parts.passes)):
                self.wanted.setdefault(value, {})[mesh, n.layout] = None

    # -- values -------------------------------------------------------------------------------

    def key(self, name: Name, layer: int, microbatch: int) -> Key:
        """Return what tells a value from others on its mesh."""
        match name.value:
            case StepArgument() | SharedValue() | LossValue() | StepResult():
                return name, ONCE, ONCE
            case Rows() | Activation() | Cotangent() | CotangentTerm() | MicrobatchIndex():
                return name, ONCE, microbatch
            case Local(role=role) if role in _OF_MICROBATCH:
                return name, layer, microbatch
            case _:
                return name, layer, ONCE

    def buffer(self, mesh: int, name: Name, layer: int, microbatch: int) -> int:
        """Return the buffer of a value that is needed now."""
        key, state = self.key(name, layer, microbatch), self.meshes[mesh]
        if key in state.coming:
            transfer, source = state.coming.pop(key)
            state.buffers[key] = state.new()
            self.add(mesh, Receive(transfer=transfer, buffer=state.buffers[key], mesh=source))
        if key not in state.buffers:
            state.buffers[key] = state.new()
            state.loads.append(_load(state.buffers[key], name, microbatch, mesh))
        return state.buffers[key]

    def add(self, mesh: int, instruction: Instruction) -> None:
        self.meshes[mesh].instructions.append(instruction)
        self.order.append(mesh)

    def send(self, source: int, buffer: int, mesh: int, key: Key, layout: Layout) -> None:
        """Move a value to another mesh, or on its own one to another layout."""
        target = self.meshes[mesh]
        if key in target.buffers or key in target.coming:
            return
        target.coming[key] = (self.transfers, source)
        self.add(source, Send(transfer=self.transfers, buffer=buffer, mesh=mesh, layout=layout))
        self.transfers += 1

    # -- tasks --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Everything before the first micro-batch; cotangents that are known early go upwards."""
        numbers = range(len(self.layers))
        for k in reversed(numbers) if self.wanted_once else numbers:
            spec = self.layers[k]
            for name, buffer in self.run(self.mesh_of[k], spec.parts.before, k).items():
                if isinstance(name.value, Cotangent):
                    self.send_back(k, name.value, name.layout, buffer, ONCE)

    def run(
        self, mesh: int, program: ProgramSpec, layer: int, microbatch: int = ONCE
    ) -> dict[Name, int]:
        """Run an executable, unless it makes nothing; returns the buffers of what it makes."""
        if not program.outputs:
            return {}
        state = self.meshes[mesh]
        inputs = tuple(self.buffer(mesh, n, layer, microbatch) for n in program.inputs)
        outputs = tuple(state.new() for _ in range(max(program.places) + 1))
        made = {n: outputs[place] for n, place in zip(program.outputs, program.places, strict=True)}
        self.add(
            mesh,
            Run(
                label=program.label,
                program=program.number,
                microbatch=microbatch,
                inputs=inputs,
                outputs=outputs,
                donated=tuple(inputs[i] for i in program.donated),
            ),
        )
        for i in program.donated:
            # Who reads an argument after its new value is there loads one of his own.
            del state.buffers[self.key(program.inputs[i], layer, microbatch)]
        for n, b in made.items():
            if isinstance(n.value, StepResult):
                state.results.append((n.value.number, b))
            else:
                state.buffers[self.key(n, layer, microbatch)] = b
        return made

    def task(self, task: Task) -> None:
        """One stage's work on one micro-batch: its layers in turn."""
        numbers = [k for k, spec in enumerate(self.layers) if spec.stage == task.stage]
        for k in numbers if task.kind == FORWARD else reversed(numbers):
            program = self.layers[k].parts.of_kind(task.kind)
            if program is None:
                continue
            made = self.run(self.mesh_of[k], program, k, task.microbatch)
            for name, buffer in made.items():
                if isinstance(name.value, Activation):
                    self.send_on(k, name.value, buffer, task.microbatch)
                elif isinstance(name.value, Cotangent):
                    self.send_back(k, name.value, name.layout, buffer, task.microbatch)

    def send_on(self, maker: int, made: Activation, buffer: int, microbatch: int) -> None:
        """Give an activation to the meshes of layers that read it."""
        source = self.mesh_of[maker]
        wanted = self.wanted_once if microbatch == ONCE else self.wanted
        for mesh, layout in wanted.get(made, {}):
            # On one mesh layers take what each micro-batch makes as it comes.
            if mesh != source or microbatch == ONCE:
                self.send(source, buffer, mesh, (Name(made, layout), ONCE, microbatch), layout)

    def send_back(
        self, reader: int, made: Cotangent, layout: Layout, buffer: int, microbatch: int
    ) -> None:
        """Give a cotangent to the layer that made the activation."""
        maker, source = self.maker[made.activation], self.mesh_of[reader]
        spec, target = self.layers[maker], self.mesh_of[maker]
        programs = (spec.parts.before,) if microbatch == ONCE else spec.parts.passes[1:]
        for n, term in _of_kind(CotangentTerm, *(p.inputs for p in programs)):
            if term == CotangentTerm(made.activation, reader):
                key = self.key(n, maker, microbatch)
                if target == source and n.layout == layout:
                    self.meshes[target].buffers[key] = buffer
                else:
                    self.send(source, buffer, target, key, n.layout)

    # -- the update ---------------------------------------------------------------------------

    def update_all(self) -> None:
        """Everything after the last micro-batch."""
        found = self.values()
        for phase, join in enumerate(self.update.joins):
            for k, (spec, mesh) in enumerate(zip(self.layers, self.mesh_of, strict=True)):
                program = spec.parts.once[1 + phase]
                self.fetch(mesh, program, k, found)
                for name, buffer in self.run(mesh, program, k).items():
                    if isinstance(name.value, SentValue):
                        found.values[name.value] = mesh, buffer
            self.fetch(0, join, ONCE, found)
            for name, buffer in self.run(0, join, ONCE).items():
                if isinstance(name.value, SharedValue):
                    found.values[name.value] = 0, buffer
        self.fetch(0, self.update.common, ONCE, found)
        self.run(0, self.update.common, ONCE)
        for k, (spec, mesh) in enumerate(zip(self.layers, self.mesh_of, strict=True)):
            self.fetch(mesh, spec.parts.once[-1], k, found)
            self.run(mesh, spec.parts.once[-1], k)

    def values(self) -> _Once:
        """Make the values of the loss, and gradients that one layer sends to another."""
        found = _Once()
        for k, (spec, mesh) in enumerate(zip(self.layers, self.mesh_of, strict=True)):
            for name, buffer in self.run(mesh, spec.parts.once[0], k).items():
                match name.value:
                    case Activation() as made:
                        self.send_on(k, made, buffer, ONCE)
                        for number in self.update.values.get(made, ()):
                            found.values[LossValue(number)] = mesh, buffer
                    case Gradient() as made:
                        found.gradients.setdefault(made, []).append((mesh, buffer))
                    case _:
                        pass
        return found

    def fetch(self, mesh: int, program: ProgramSpec, layer: int, found: _Once) -> None:
        """Send what the update of a layer reads of others."""
        state = self.meshes[mesh]
        for n in program.inputs:
            key = self.key(n, layer, ONCE)
            if key in state.buffers or key in state.coming:
                continue
            match n.value:
                case LossValue() | SharedValue() | SentValue() as value:
                    source, buffer = found.values[value]
                case Gradient() as value:
                    source, buffer = self.added(mesh, value, layer, found.gradients[value])
                case _:
                    continue
            self.send(source, buffer, mesh, key, n.layout)

    def added(self, mesh: int, gradient: Gradient, layer: int, parts: Sequence[Place]) -> Place:
        """Return the gradient of a tied parameter: the sum of what several layers send."""
        if len(parts) == 1:
            return parts[0]
        adder = self.update.adders[gradient.parameter]
        for n, (source, buffer) in zip(adder.inputs, parts, strict=True):
            self.send(source, buffer, mesh, self.key(n, layer, ONCE), n.layout)
        made = self.run(mesh, adder, layer)
        return mesh, next(iter(made.values()))

    def finished(self) -> PipelineProgram:
        """Return the program, with what is no longer needed freed."""
        meshes = [
            MeshProgram(
                loads=tuple(state.loads),
                instructions=tuple(state.instructions),
                results=tuple(state.results),
            )
            for state in self.meshes
        ]
        return with_frees(
            PipelineProgram(
                meshes=tuple(meshes), order=tuple(self.order), passed=self.update.passed
            )
        )


def _of_kind(kind: type[_Value], *names: Sequence[Name]) -> list[tuple[Name, _Value]]:
    """Return the names whose values are of one kind with these values, each once."""
    found = dict.fromkeys(n for part in names for n in part)
    return [(n, n.value) for n in found if isinstance(n.value, kind)]


def _load(buffer: int, name: Name, microbatch: int, mesh: int) -> Load:
    """Return the load of a value that is there when the step begins."""
    match name.value:
        case StepArgument(number=number):
            kind, at = "argument", ONCE
        case Rows(number=number):
            kind, at = "rows", microbatch
        case MicrobatchIndex():
            kind, number, at = "index", 0, microbatch
        case _:
            raise AssertionError(f"{name} is not there on mesh {mesh}")
    return Load(buffer=buffer, kind=kind, number=number, microbatch=at, layout=name.layout)
