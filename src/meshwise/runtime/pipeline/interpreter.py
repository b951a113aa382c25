"""A pipeline that is ready to run, and the thread of a process that runs its instructions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

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
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.runtime.devices import array_of
from meshwise.runtime.host_rows import HostRows, Span, merged, rows_on_devices
from meshwise.runtime.job.job import Job
from meshwise.runtime.pipeline.buffers import BufferSpecs
from meshwise.runtime.pipeline.build import CompiledLayer
from meshwise.runtime.pipeline.compiled import CompiledProgram
from meshwise.runtime.placement import Argument
from meshwise.runtime.transports.copies import Rows
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.runtime.transports.transport import Transport
from meshwise.schedules.schedule import Schedule
from meshwise.trace.layers.layering import Layering

_INSTRUCTION_CHARS = 80


class Step(NamedTuple):
    """An instruction that a process takes part in.

    Attributes:
        order: Its position among the instructions of all meshes.
        mesh: The mesh whose instruction it is.
        at: Its position in the list of the mesh.
        instruction: The instruction.
    """

    order: int
    mesh: int
    at: int
    instruction: Instruction


class Place(NamedTuple):
    """What a process is at; its text is made when somebody asks.

    Attributes:
        label: The step.
        step: The instruction.
    """

    label: str
    step: Step

    def __str__(self) -> str:
        """Return it as text."""
        _, mesh, at, instruction = self.step
        text = str(instruction)[:_INSTRUCTION_CHARS]
        return f"in {self.label}, at instruction {at} of mesh {mesh} ({text})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline that is ready to run, as one process sees it.

    Attributes:
        layers: The layers of the step.
        compiled: The layers with their executables.
        meshes: By number; a mesh runs one stage or several.
        executables: By number.
        program: What each mesh does.
        schedule: In which order.
        indices: For each mesh with devices of this process the numbers of the micro-batches.
        state: The numbers of arguments that are overwritten.
        specs: The buffers of all meshes.
        steps: The instructions that this process takes part in, in order of dispatch.
        crossing: The numbers of the transfers that every process takes part in.
        totals: For each program of a layer the bytes of one device while it runs, as its process
            says; none where this process is alone.
        job: The processes that run the step together; None where this one is alone.
        transport: The way to the others.
        copier: Moves arrays to meshes.
        sending: How tensors pass between hosts from stage to stage; None: each tile once.
        commit: The number of instructions of all meshes before the first that overwrites the state.
    """

    layers: Layering
    compiled: tuple[CompiledLayer, ...]
    meshes: tuple[Mesh, ...]
    executables: tuple[CompiledProgram, ...]
    program: PipelineProgram
    schedule: Schedule
    indices: Mapping[int, tuple[Array, ...]]
    state: frozenset[int]
    specs: BufferSpecs
    steps: tuple[Step, ...]
    crossing: frozenset[int]
    totals: tuple[int, ...]
    job: Job | None
    transport: Transport | None
    copier: TileCopier
    sending: Sending | None
    commit: int

    def run(
        self,
        flat: Sequence[Array],
        at_commit: Callable[[], None] = lambda: None,
        label: str = "a step",
    ) -> list[Array]:
        """One step.

        Args:
            flat: Arguments of the step, of any placement; an array that is overwritten occurs once.
            at_commit: Called when the state is taken over.
            label: Which step it is; in a job no other step of any pipeline has the same.

        Returns:
            Its results, each on the mesh of its stage.
        """
        return PipelineStep(self, flat, label).run(at_commit)

    def rows_of(self, load: Load) -> Rows | None:
        """Return the rows of an argument that a buffer has; None for all of it."""
        if load.kind != "rows":
            return None
        dim = self.layers.split.batch_dims[load.number]
        size = self.layers.split.in_avals[load.number].shape[dim]
        size //= self.schedule.num_microbatches
        return Rows(dim, load.microbatch * size, (load.microbatch + 1) * size)

    def rows_here(self, number: int, dim: int) -> tuple[Span, ...]:
        """Return the rows of a batch argument that devices of this process take.

        Args:
            number: The argument.
            dim: Its batch dim.
        """
        found: list[Span] = []
        for m in self.indices:
            for load in self.program.meshes[m].loads:
                if load.number == number and load.kind != "index":
                    spec, rows = self.specs.meshes[m][load.buffer], self.rows_of(load)
                    first = 0 if rows is None else rows.start
                    here = rows_on_devices(spec.sharding, spec.shape, dim)
                    found += [(first + start, first + stop) for start, stop in here]
        if number in {i for _, i in self.program.passed}:
            found.append((0, self.layers.split.in_avals[number].shape[dim]))
        return merged(found)


class PipelineStep:
    """The buffers of one step that are in this process."""

    def __init__(self, pipeline: Pipeline, flat: Sequence[Array], label: str = "a step") -> None:
        self.pipeline = pipeline
        self.flat = flat
        self.label = label
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
                if value is None:
                    continue
                if load.kind == "argument" and load.number in taken and not is_donated:
                    value = jnp.copy(value)
                buffers[load.buffer] = value
            for i in wanted & taken:
                self.passed[i] = copied(flat[i])
            self.buffers.append(buffers)
        for i in wanted - self.passed.keys():
            self.passed[i] = flat[i] if isinstance(flat[i], jax.Array) else copied(flat[i])

    def loaded(self, mesh: int, load: Load, *, is_donated: bool) -> Array | None:
        """Return what is in a buffer when the step begins; None in another process.

        Where the buffer is in another process and the argument in this one, it is sent there; over
        a collective transport this process takes part in what others send, too.
        """
        is_here = mesh in self.pipeline.indices
        if load.kind == "index":
            return self.pipeline.indices[mesh][load.microbatch] if is_here else None
        value = self.flat[load.number]
        if not is_here and not self.pipeline.copier.takes_part(value):
            return None
        sharding = self.pipeline.specs.meshes[mesh][load.buffer].sharding
        assert isinstance(sharding, NamedSharding)
        found = put(
            self.pipeline.copier,
            value,
            sharding,
            rows=self.pipeline.rows_of(load),
            is_donated=is_donated,
            is_overwritten=load.number in self.pipeline.state,
            label=f"buffer {load.buffer} of mesh {mesh} at the beginning of {self.label}",
        )
        return found if is_here else None

    def run(self, at_commit: Callable[[], None]) -> list[Array]:
        """Run all instructions, in an order in which none waits for a later one.

        What fails says which instruction it was, and those around it.

        Args:
            at_commit: Called when the state is taken over.
        """
        whereabouts = None if self.pipeline.job is None else self.pipeline.job.whereabouts
        try:
            is_committed = False
            for step in self.pipeline.steps:
                if whereabouts is not None:
                    whereabouts.at(Place(self.label, step))
                if step.order >= self.pipeline.commit and not is_committed:
                    # What fails here is an earlier instruction.
                    jax.block_until_ready((self.buffers, self.travelling))
                    at_commit()
                    is_committed = True
                try:
                    self.step(step.mesh, step.instruction)
                except Exception as error:
                    shown = around(self.pipeline.program.meshes[step.mesh], step.at)
                    error.add_note(f"while mesh {step.mesh} ran instruction {step.at}:\n{shown}")
                    raise
            if not is_committed:
                at_commit()
            results = self.results()
        finally:
            if whereabouts is not None:
                whereabouts.at(None)
        if whereabouts is not None:
            whereabouts.dispatched(self.label, results)
        return results

    def results(self) -> list[Array]:
        """Return what the step returns, when all instructions are done."""
        program, specs = self.pipeline.program, self.pipeline.specs.meshes
        results: dict[int, Array] = {j: self.passed[i] for j, i in program.passed}
        for m, mesh in enumerate(program.meshes):
            buffers = self.buffers[m]
            for j, b in mesh.results:
                results[j] = buffers[b] if b in buffers else array_of(specs[m][b], [])
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
                self.transfer(instruction.transfer, buffers.get(instruction.buffer))
            case Receive():
                buffers[instruction.buffer] = self.travelling.pop(instruction.transfer)
            case Free():
                for b in instruction.buffers:
                    del buffers[b]

    def transfer(self, number: int, value: Array | None) -> None:
        """Start a transfer from this process, to it, or both.

        Args:
            number: The number of the transfer.
            value: What is sent; None where it lies in other processes only.
        """
        spec = self.pipeline.specs.transfers[number]
        sent = array_of(spec.source, []) if value is None else value
        if sent.sharding != spec.destination:
            label = f"transfer {number} of {self.label}"
            # `program.verify` knows that it is not donated.
            sent = self.pipeline.copier.put(
                sent,
                spec.destination,
                is_overwritten=False,
                label=label,
                sending=self.pipeline.sending,
            )
        if sent.addressable_shards:
            self.travelling[number] = sent


def own_instructions(
    program: PipelineProgram, here: Collection[int], crossing: Collection[int] = ()
) -> tuple[Step, ...]:
    """Return what a process dispatches: what its meshes do, and what others send to them.

    All processes take them from one order, so that none waits for an instruction that another one
    has yet to dispatch and that waits for this one (`verify_program`).

    Args:
        program: What all meshes do.
        here: The numbers of the meshes with devices of this process.
        crossing: The numbers of the transfers that every process takes part in.
    """
    return tuple(
        Step(order, mesh, at, instruction)
        for order, (mesh, at, instruction) in enumerate(program.in_order())
        if mesh in here
        or (
            isinstance(instruction, Send)
            and (instruction.mesh in here or instruction.transfer in crossing)
        )
    )


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


def copied(value: Array | HostRows | np.ndarray) -> Array:
    """Return an array of its own; one without shards in this process stays as it is."""
    if isinstance(value, jax.Array) and not value.addressable_shards:
        return value
    return jnp.array(value.whole() if isinstance(value, HostRows) else value)


def put(
    copier: TileCopier,
    value: Argument,
    sharding: NamedSharding,
    *,
    rows: Rows | None = None,
    is_donated: bool = False,
    is_overwritten: bool = False,
    label: str | None = None,
) -> Array:
    """Return a value where it is wanted.

    Args:
        copier: Moves it.
        value: The value.
        sharding: Where it goes.
        rows: Those that go; None for all.
        is_donated: Whether it is overwritten there: then it shares no memory with `value`, unless
            it is `value`.
        is_overwritten: As for `TileCopier.put`.
        label: As for `TileCopier.put`.
    """
    if rows is None and isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    return copier.put(
        value,
        sharding,
        rows=rows,
        own_memory=is_donated,
        is_overwritten=is_overwritten,
        label=label,
    )
