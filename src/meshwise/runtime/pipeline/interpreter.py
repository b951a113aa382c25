"""A pipeline that is ready to run in one process, and the thread that runs its instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

from meshwise.graph.layout import Layout
from meshwise.program.instructions import (
    Free,
    Instruction,
    Load,
    PipelineProgram,
    Receive,
    Run,
    Send,
)
from meshwise.program.text import around
from meshwise.runtime.pipeline.build import CompiledLayer
from meshwise.runtime.pipeline.compiled import CompiledProgram
from meshwise.runtime.pipeline.tile_copier import TileCopier
from meshwise.schedules.schedule import Schedule
from meshwise.spmd.part import border_spec
from meshwise.trace.layers.layering import Layering


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline that is ready to run.

    Attributes:
        layers: The layers of the step.
        compiled: The layers with their executables.
        meshes: By number; a mesh runs one stage or several.
        executables: By number.
        program: What each mesh does.
        schedule: In which order.
        indices: For each mesh the numbers of the micro-batches.
        copier: Moves arrays to meshes.
        commit: The number of instructions before the first that overwrites the state.
    """

    layers: Layering
    compiled: tuple[CompiledLayer, ...]
    meshes: tuple[Mesh, ...]
    executables: tuple[CompiledProgram, ...]
    program: PipelineProgram
    schedule: Schedule
    indices: tuple[tuple[Array, ...], ...]
    copier: TileCopier
    commit: int

    def run(
        self, flat: Sequence[Array], at_commit: Callable[[], None] = lambda: None
    ) -> list[Array]:
        """One step.

        Args:
            flat: Arguments of the step, of any placement; an array that is overwritten occurs once.
            at_commit: Called when the state is taken over.

        Returns:
            Its results, each on the mesh of its stage.
        """
        return PipelineStep(self, flat).run(at_commit)


class PipelineStep:
    """The buffers of one step."""

    def __init__(self, pipeline: Pipeline, flat: Sequence[Array]) -> None:
        self.pipeline = pipeline
        self.flat = flat
        self.buffers: list[dict[int, Array]] = []
        self.travelling: dict[int, Array] = {}
        # Arguments that are results, too, as they were: what is overwritten is copied first.
        self.passed: dict[int, Array] = {}
        wanted = {i for _, i in pipeline.program.passed}
        for number, program in enumerate(pipeline.program.meshes):
            gone = {b for i in program.instructions if isinstance(i, Run) for b in i.donated}
            taken = {x.number for x in program.loads if x.kind == "argument" and x.buffer in gone}
            buffers: dict[int, Array] = {}
            for load in program.loads:
                is_donated = load.buffer in gone
                value = self.loaded(number, load, is_donated=is_donated)
                if load.kind == "argument" and load.number in taken and not is_donated:
                    value = jnp.copy(value)
                buffers[load.buffer] = value
            for i in wanted & taken:
                self.passed[i] = jnp.array(flat[i])
            self.buffers.append(buffers)
        for i in wanted - self.passed.keys():
            self.passed[i] = flat[i] if isinstance(flat[i], jax.Array) else jnp.array(flat[i])

    def loaded(self, mesh: int, load: Load, *, is_donated: bool) -> Array:
        """Return what is in a buffer when the step begins."""
        match load.kind:
            case "index":
                return self.pipeline.indices[mesh][load.microbatch]
            case "rows":
                value = self.rows(load.number, load.microbatch)
            case _:
                value = self.flat[load.number]
        target = self.pipeline.meshes[mesh]
        return put(self.pipeline.copier, value, target, load.layout, is_donated=is_donated)

    def rows(self, argument: int, microbatch: int) -> Array:
        """Rows of a micro-batch."""
        layers = self.pipeline.layers
        dim, value = layers.split.batch_dims[argument], self.flat[argument]
        size = value.shape[dim] // self.pipeline.schedule.num_microbatches
        place = [slice(None)] * value.ndim
        place[dim] = slice(microbatch * size, (microbatch + 1) * size)
        return value[tuple(place)]

    def run(self, at_commit: Callable[[], None]) -> list[Array]:
        """Run all instructions, in an order in which none waits for a later one.

        What fails says which instruction it was, and those around it.

        Args:
            at_commit: Called when the state is taken over.
        """
        program = self.pipeline.program
        for n, (mesh, at, instruction) in enumerate(program.in_order()):
            if n == self.pipeline.commit:
                # What fails here is an earlier instruction.
                jax.block_until_ready((self.buffers, self.travelling))
                at_commit()
            try:
                self.step(mesh, instruction)
            except Exception as error:
                shown = around(program.meshes[mesh], at)
                error.add_note(f"while mesh {mesh} ran instruction {at}:\n{shown}")
                raise
        if self.pipeline.commit == len(program.order):
            at_commit()
        return self.results()

    def results(self) -> list[Array]:
        """Return what the step returns, when all instructions are done."""
        program = self.pipeline.program
        results: dict[int, Array] = {j: self.passed[i] for j, i in program.passed}
        for buffers, mesh in zip(self.buffers, program.meshes, strict=True):
            results.update((j, buffers[b]) for j, b in mesh.results)
        return [results[j] for j in range(len(results))]

    def step(self, mesh: int, instruction: Instruction) -> None:
        """One instruction."""
        buffers = self.buffers[mesh]
        match instruction:
            case Run():
                executable = self.pipeline.executables[instruction.program]
                made = executable.run(*(buffers[b] for b in instruction.inputs))
                for b in instruction.donated:
                    del buffers[b]
                buffers.update(zip(instruction.outputs, made, strict=True))
            case Send():
                target = self.pipeline.meshes[instruction.mesh]
                value = buffers[instruction.buffer]
                sent = put(self.pipeline.copier, value, target, instruction.layout)
                self.travelling[instruction.transfer] = sent
            case Receive():
                buffers[instruction.buffer] = self.travelling.pop(instruction.transfer)
            case Free():
                for b in instruction.buffers:
                    del buffers[b]


def commit_point(program: PipelineProgram) -> int:
    """Count the instructions, in order of dispatch, before one that overwrites an argument.

    Dispatch is asynchronous, so that a program of a forward or backward pass may fail after the
    update was dispatched, which then overwrites the state with nothing.  So everything that was
    dispatched is waited for here; before it a failure costs nothing but the step.

    Args:
        program: What all meshes do.
    """
    arguments = [
        {load.buffer for load in mesh.loads if load.kind == "argument"} for mesh in program.meshes
    ]
    for n, (mesh, _, instruction) in enumerate(program.in_order()):
        if isinstance(instruction, Run) and not arguments[mesh].isdisjoint(instruction.donated):
            return n
    return len(program.order)


def put(
    copier: TileCopier,
    value: Array | np.generic,
    mesh: Mesh,
    layout: Layout,
    *,
    is_donated: bool = False,
) -> Array:
    """Return a value on a mesh, in a layout.

    Args:
        copier: Moves it.
        value: The value.
        mesh: Where it goes.
        layout: How it lies there.
        is_donated: Whether it is overwritten there: then it shares no memory with `value`, unless
            it is `value`.
    """
    sharding = NamedSharding(mesh, border_spec(layout, mesh.axis_names))
    if isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    return copier.put(value, sharding, own_memory=is_donated)
