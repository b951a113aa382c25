"""Layers, a schedule and a number of micro-batches -> the instructions of every mesh.

Tasks are taken in an order in which one thread can dispatch them; what a task makes for another
mesh is sent at once, and received right before it is needed.  A buffer is freed after its last use.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from meshwise.program.names import LayerSpec, Name, ProgramSpec
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Schedule, Task

ONCE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSpec:
    """What joins layers, on mesh 0.

    Attributes:
        joins: For each phase of the update.
        common: Results that no layer makes.
        values: For each variable that is a value of the loss its numbers.
        adders: For tied parameters with several senders the executable that adds gradients up.
        passed: Pairs (result, argument) of results that are arguments.
    """

    joins: tuple[ProgramSpec, ...]
    common: ProgramSpec
    values: Mapping[Any, tuple[int, ...]]
    adders: Mapping[int, ProgramSpec]
    passed: tuple[tuple[int, int], ...]


def emit(
    layers: Sequence[LayerSpec],
    update: UpdateSpec,
    schedule: Schedule,
) -> PipelineProgram:
    """The program of a pipeline.

    Args:
        layers: In order.
        update: What joins them.
        schedule: Who runs what in which order.

    Raises:
        PlanError: the schedule waits for itself, or has no backward pass.
    """
    if schedule.forward_only:
        raise PlanError(
            f"the schedule {schedule.name} has no backward pass, and a step needs one; use 1f1b or "
            "another that trains"
        )
    emitter = _Emitter(layers, update, schedule)
    emitter.begin()
    position = [0] * len(schedule.tasks)
    while True:
        moved = False
        for mesh, tasks in enumerate(schedule.tasks):
            while position[mesh] < len(tasks) and emitter.is_ready(tasks[position[mesh]]):
                emitter.task(tasks[position[mesh]])
                position[mesh] += 1
                moved = True
        if not moved:
            break
    waiting = [t[p] for t, p in zip(schedule.tasks, position, strict=True) if p < len(t)]
    if waiting:
        raise PlanError(f"the schedule {schedule.name} waits for itself: {waiting[0]}")
    emitter.update_all()
    return emitter.finished()


@dataclass(slots=True)
class _Mesh:
    """One mesh while its list grows."""

    loads: list[Load] = field(default_factory=list[Load])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    results: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    buffers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    coming: dict[Hashable, tuple[int, int]] = field(default_factory=dict[Hashable, tuple[int, int]])
    count: int = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1


@dataclass(slots=True)
class _Once:
    """Where the values of the update are: mesh and buffer."""

    values: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    gradients: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int]]]
    )
    shared: dict[Any, tuple[int, int]] = field(default_factory=dict[Any, tuple[int, int]])
    sent: dict[Any, tuple[int, int]] = field(default_factory=dict[Any, tuple[int, int]])


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
            n.what: k
            for k, layer in enumerate(layers)
            for n in (*layer.forward.outputs, *layer.once[0].outputs)
            if n.kind == "activation"
        }
        # Which meshes want an activation, and how.
        self.wanted: dict[Any, dict[tuple[int, Layout], None]] = {}
        self.wanted_once: dict[Any, dict[tuple[int, Layout], None]] = {}
        for layer, mesh in zip(layers, self.mesh_of, strict=True):
            for n in layer.once[0].inputs:
                if n.kind == "activation":
                    self.wanted_once.setdefault(n.what, {})[mesh, n.layout] = None
            for n in (n for program in layer.passes for n in program.inputs):
                if n.kind == "activation":
                    self.wanted.setdefault(n.what, {})[mesh, n.layout] = None
        self.done: set[Task] = set()
        # For each stage the activations that others make, and the stages that send cotangents.
        self.from_others: list[list[Name]] = [[] for _ in schedule.mesh_of_stage]
        self.readers: list[set[int]] = [set() for _ in schedule.mesh_of_stage]
        for layer in layers:
            for n in layer.forward.inputs:
                if n.kind == "activation" and layers[self.maker[n.what]].stage != layer.stage:
                    self.from_others[layer.stage].append(n)
            for n in _cotangents(layer):
                reader: int = n.what[1]
                if layers[reader].stage != layer.stage:
                    self.readers[layer.stage].add(layers[reader].stage)

    # -- values -------------------------------------------------------------------------------

    def key(self, name: Name, layer: int, microbatch: int) -> Hashable:
        """What a value is called on its mesh."""
        match name.kind:
            case "argument" | "shared" | "value" | "result":
                return name
            case "rows" | "activation" | "cotangent":
                return name, microbatch
            case "index":
                return "index", microbatch
            case "kept" | "entering" | "delayed" | "total":
                return name, layer, microbatch
            case _:
                return name, layer

    def buffer(self, mesh: int, name: Name, layer: int, microbatch: int) -> int:
        """The buffer of a value that is needed now."""
        key, state = self.key(name, layer, microbatch), self.meshes[mesh]
        if key in state.coming:
            transfer, source = state.coming.pop(key)
            state.buffers[key] = state.new()
            self.add(mesh, Receive(transfer=transfer, buffer=state.buffers[key], mesh=source))
        if key not in state.buffers:
            if name.kind not in ("argument", "rows", "index"):
                raise AssertionError(f"{name} is not there on mesh {mesh}")
            number = 0 if name.kind == "index" else name.what
            at = ONCE if name.kind == "argument" else microbatch
            state.buffers[key] = state.new()
            state.loads.append(
                Load(
                    buffer=state.buffers[key],
                    kind=name.kind,
                    number=number,
                    microbatch=at,
                    layout=name.layout,
                )
            )
        return state.buffers[key]

    def add(self, mesh: int, instruction: Instruction) -> None:
        self.meshes[mesh].instructions.append(instruction)
        self.order.append(mesh)

    def send(self, source: int, buffer: int, mesh: int, key: Hashable, layout: Layout) -> None:
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
            for name, buffer in self.run(self.mesh_of[k], spec.before, k).items():
                if name.kind == "cotangent":
                    self.send_back(k, name, buffer, ONCE)

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
            if n.kind == "result":
                state.results.append((n.what, b))
            else:
                state.buffers[self.key(n, layer, microbatch)] = b
        return made

    def is_ready(self, task: Task) -> bool:
        """Whether all that comes from other stages is on its way."""
        state = self.meshes[self.mesh_of_stage[task.stage]]
        if task.kind == WEIGHT:
            return Task(BACKWARD, task.stage, task.microbatch) in self.done
        if task.kind == FORWARD:
            keys = [(name, task.microbatch) for name in self.from_others[task.stage]]
            return all(key in state.buffers or key in state.coming for key in keys)
        needed = [Task(BACKWARD, s, task.microbatch) for s in self.readers[task.stage]]
        needed.append(Task(FORWARD, task.stage, task.microbatch))
        return all(other in self.done for other in needed)

    def task(self, task: Task) -> None:
        """One stage's work on one micro-batch: its layers in turn."""
        numbers = [k for k, spec in enumerate(self.layers) if spec.stage == task.stage]
        for k in numbers if task.kind == FORWARD else reversed(numbers):
            program = self.layers[k].of_kind(task.kind)
            if program is None:
                continue
            made = self.run(self.mesh_of[k], program, k, task.microbatch)
            for name, buffer in made.items():
                if name.kind == "activation":
                    self.send_on(k, name, buffer, task.microbatch)
                elif name.kind == "cotangent":
                    self.send_back(k, name, buffer, task.microbatch)
        self.done.add(task)

    def send_on(self, maker: int, name: Name, buffer: int, microbatch: int) -> None:
        """Give an activation to the meshes of layers that read it."""
        source = self.mesh_of[maker]
        wanted = self.wanted_once if microbatch == ONCE else self.wanted
        for mesh, layout in wanted.get(name.what, {}):
            # On one mesh layers take what each micro-batch makes as it comes.
            if mesh != source or microbatch == ONCE:
                self.send(source, buffer, mesh, (name._replace(layout=layout), microbatch), layout)

    def send_back(self, reader: int, name: Name, buffer: int, microbatch: int) -> None:
        """Give a cotangent to the layer that made the activation."""
        maker, source = self.maker[name.what], self.mesh_of[reader]
        spec, target = self.layers[maker], self.mesh_of[maker]
        inputs = spec.before.inputs if microbatch == ONCE else _cotangents(spec)
        for n in inputs:
            if n.kind == "cotangent" and n.what == (name.what, reader):
                key = self.key(n, maker, microbatch)
                if target == source and n.layout == name.layout:
                    self.meshes[target].buffers[key] = buffer
                else:
                    self.send(source, buffer, target, key, n.layout)

    # -- the update ---------------------------------------------------------------------------

    def update_all(self) -> None:
        """Everything after the last micro-batch."""
        found = _Once()
        for k, (spec, mesh) in enumerate(zip(self.layers, self.mesh_of, strict=True)):
            for name, buffer in self.run(mesh, spec.once[0], k).items():
                if name.kind == "activation":
                    self.send_on(k, name, buffer, ONCE)
                if name.kind == "activation" and name.what in self.update.values:
                    there = dict.fromkeys(self.update.values[name.what], (mesh, buffer))
                    found.values.update(there)
                elif name.kind == "gradient":
                    found.gradients.setdefault(name.what, []).append((mesh, buffer))
        for phase, join in enumerate(self.update.joins):
            for k, (spec, mesh) in enumerate(zip(self.layers, self.mesh_of, strict=True)):
                program = spec.once[1 + phase]
                self.fetch(mesh, program, k, found)
                for name, buffer in self.run(mesh, program, k).items():
                    if name.kind == "sent":
                        found.sent[name.what] = (mesh, buffer)
            self.fetch(0, join, ONCE, found)
            for name, buffer in self.run(0, join, ONCE).items():
                found.shared[name.what] = (0, buffer)
        self.fetch(0, self.update.common, ONCE, found)
        self.run(0, self.update.common, ONCE)
        for k, (spec, mesh) in enumerate(zip(self.layers, self.mesh_of, strict=True)):
            self.fetch(mesh, spec.once[-1], k, found)
            self.run(mesh, spec.once[-1], k)

    def fetch(self, mesh: int, program: ProgramSpec, layer: int, found: _Once) -> None:
        """Send what the update of a layer reads of others."""
        state = self.meshes[mesh]
        for n in program.inputs:
            key = self.key(n, layer, ONCE)
            if key in state.buffers or key in state.coming:
                continue
            match n.kind:
                case "value":
                    source, buffer = found.values[n.what]
                case "shared":
                    source, buffer = found.shared[n.what]
                case "sent":
                    source, buffer = found.sent[n.what]
                case "gradient":
                    source, buffer = self.added(mesh, n, layer, found.gradients[n.what])
                case _:
                    continue
            self.send(source, buffer, mesh, key, n.layout)

    def added(
        self, mesh: int, name: Name, layer: int, parts: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """The gradient of a tied parameter: the sum of what several layers send."""
        if len(parts) == 1:
            return parts[0]
        adder = self.update.adders[name.what]
        for n, (source, buffer) in zip(adder.inputs, parts, strict=True):
            self.send(source, buffer, mesh, self.key(n, layer, ONCE), n.layout)
        made = self.run(mesh, adder, layer)
        return mesh, next(iter(made.values()))

    def finished(self) -> PipelineProgram:
        """The program, with what is no longer needed freed."""
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


def _cotangents(layer: LayerSpec) -> list[Name]:
    """Cotangents that the backward pass of a layer takes from other layers, each once."""
    found = (n for program in layer.passes[1:] for n in program.inputs if n.kind == "cotangent")
    return list(dict.fromkeys(found))
