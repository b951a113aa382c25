"""What passes between the meshes of a pipeline in a step, known before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax

from meshwise.jax_compat.jaxprs import Aval
from meshwise.program.instructions import Receive, Run, Send
from meshwise.runtime.pipeline.interpreter import Pipeline


class Message(NamedTuple):
    """One transfer.

    Attributes:
        transfer: Its number.
        source_mesh: Who sends.
        destination_mesh: Who receives; the same where only the layout changes.
        source_stage: Whose result it is.
        destination_stage: Whose program reads it first.
        microbatch: The number of the micro-batch; -1 for what is sent once a step.
        num_bytes: The bytes of the whole tensor.
    """

    transfer: int
    source_mesh: int
    destination_mesh: int
    source_stage: int
    destination_stage: int
    microbatch: int
    num_bytes: int


def messages(pipeline: Pipeline) -> tuple[Message, ...]:
    """Every transfer of a step, by number."""
    stages = stage_of_program(pipeline)
    takers = dict(_takers(pipeline, stages))
    program = pipeline.program
    sizes: list[dict[int, int]] = [
        {x.buffer: _bytes(pipeline.layers.split.in_avals[x.number]) for x in mesh.loads}
        for mesh in program.meshes
    ]
    found: dict[int, Message] = {}
    latest: list[tuple[int, int]] = [(0, -1) for _ in program.meshes]
    for mesh, _, instruction in program.in_order():
        match instruction:
            case Run():
                executable = pipeline.executables[instruction.program]
                avals = dict(zip(executable.places, executable.out_avals, strict=True))
                for place, buffer in enumerate(instruction.outputs):
                    sizes[mesh][buffer] = _bytes(avals[place])
                latest[mesh] = stages[instruction.program], instruction.microbatch
            case Send():
                stage, microbatch = latest[mesh]
                found[instruction.transfer] = Message(
                    instruction.transfer,
                    mesh,
                    instruction.mesh,
                    stage,
                    takers.get((instruction.mesh, instruction.transfer), stage),
                    microbatch,
                    sizes[mesh][instruction.buffer],
                )
            case Receive():
                sizes[mesh][instruction.buffer] = found[instruction.transfer].num_bytes
            case _:
                pass
    return tuple(found[n] for n in sorted(found))


def bytes_between(pipeline: Pipeline) -> int:
    """Bytes that leave a mesh for another one in a step, each tensor counted once."""
    return sum(m.num_bytes for m in messages(pipeline) if m.source_mesh != m.destination_mesh)


def stage_of_program(pipeline: Pipeline) -> tuple[int, ...]:
    """For each executable its stage; what joins layers runs with the first."""
    found = [layer.stage for layer in pipeline.compiled for _ in layer.parts.programs]
    return (*found, *(0 for _ in pipeline.executables[len(found) :]))


def _takers(pipeline: Pipeline, stages: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], int]]:
    """For each mesh and transfer that it receives the stage that reads it first."""
    for number, mesh in enumerate(pipeline.program.meshes):
        waiting: dict[int, int] = {}
        for instruction in mesh.instructions:
            if isinstance(instruction, Receive):
                waiting[instruction.buffer] = instruction.transfer
            elif isinstance(instruction, Run):
                for buffer in waiting.keys() & set(instruction.inputs):
                    yield (number, waiting.pop(buffer)), stages[instruction.program]


def _bytes(aval: Aval | jax.ShapeDtypeStruct) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize
