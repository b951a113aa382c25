"""The buffers of a compiled pipeline: their shapes and where they lie, known before it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from meshwise.graph.layout import Layout
from meshwise.jax_compat.arrays import HOST_MEMORY
from meshwise.program.instructions import Load, PipelineProgram, Receive, Run, Send
from meshwise.program.names import StepArgument
from meshwise.runtime.pipeline.compiled import CompiledProgram
from meshwise.spmd.part import border_spec
from meshwise.spmd.program import placed_sharding
from meshwise.trace.layers.layering import Layering


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpec:
    """What a transfer moves.

    Attributes:
        source: Shape, dtype and sharding of the buffer that is sent.
        destination: The sharding of the buffer that receives it.
    """

    source: jax.ShapeDtypeStruct
    destination: NamedSharding

    @property
    def is_between_processes(self) -> bool:
        """Whether its devices are of more than one process."""
        assert self.source.sharding is not None
        devices = self.source.sharding.device_set | self.destination.device_set
        return len({device.process_index for device in devices}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpecs:
    """The buffers of all meshes, in this process or not.

    Attributes:
        meshes: For each mesh the shape, dtype and sharding of each buffer.
        transfers: What each transfer moves, by its number.
    """

    meshes: tuple[Mapping[int, jax.ShapeDtypeStruct], ...]
    transfers: Mapping[int, TransferSpec]

    def bytes_on_device(self) -> list[dict[int, int]]:
        """Return for each mesh the bytes of each buffer on one device."""
        return [
            {b: local_bytes(spec, spec.sharding) for b, spec in mesh.items()}
            for mesh in self.meshes
        ]


def buffer_specs(
    program: PipelineProgram,
    executables: Sequence[CompiledProgram],
    meshes: Sequence[Mesh],
    layers: Layering,
    num_microbatches: int,
) -> BufferSpecs:
    """Return the shapes, dtypes and shardings of all buffers.

    Args:
        program: What each mesh does.
        executables: By number.
        meshes: The devices of each mesh.
        layers: The layers of the step.
        num_microbatches: B.
    """
    # Arguments that programs take from the memory of the host.
    apart = {
        name.value
        for executable in executables
        for name, sharding in zip(executable.inputs, executable.in_shardings, strict=True)
        if isinstance(name.value, StepArgument) and sharding.memory_kind == HOST_MEMORY
    }

    def lies(
        mesh: int, shape: Sequence[int], dtype: np.dtype, layout: Layout, *, in_host: bool = False
    ) -> jax.ShapeDtypeStruct:
        there = meshes[mesh]
        spec = border_spec(layout, there.axis_names)
        sharding = placed_sharding(there, spec, in_host=in_host)
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)

    found = [
        {
            load.buffer: lies(
                m,
                *_loaded(layers, num_microbatches, load),
                load.layout,
                in_host=load.kind == "argument" and StepArgument(load.number) in apart,
            )
            for load in mesh.loads
        }
        for m, mesh in enumerate(program.meshes)
    ]
    transfers: dict[int, TransferSpec] = {}
    for m, _, instruction in program.in_order():
        match instruction:
            case Run():
                executable = executables[instruction.program]
                made = dict(zip(executable.places, executable.out_avals, strict=True))
                shardings = executable.out_shardings
                for place, b in enumerate(instruction.outputs):
                    aval = made[place]
                    found[m][b] = jax.ShapeDtypeStruct(
                        aval.shape, aval.dtype, sharding=shardings[place]
                    )
            case Send():
                source = found[m][instruction.buffer]
                there = lies(instruction.mesh, source.shape, source.dtype, instruction.layout)
                transfers[instruction.transfer] = TransferSpec(
                    source=source, destination=there.sharding
                )
            case Receive():
                spec = transfers[instruction.transfer]
                found[m][instruction.buffer] = jax.ShapeDtypeStruct(
                    spec.source.shape, spec.source.dtype, sharding=spec.destination
                )
            case _:
                pass
    return BufferSpecs(meshes=tuple(found), transfers=transfers)


def _loaded(
    layers: Layering, num_microbatches: int, load: Load
) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and dtype of what is there when the step begins."""
    if load.kind == "index":
        return (), np.dtype(np.int32)
    aval = layers.split.in_avals[load.number]
    shape = list(aval.shape)
    if load.kind == "rows":
        shape[layers.split.batch_dims[load.number]] //= num_microbatches
    return tuple(shape), aval.dtype


def local_bytes(aval: jax.ShapeDtypeStruct | jax.Array, sharding: jax.sharding.Sharding) -> int:
    """Return the bytes of an array on one of its devices; none where it lies in host memory.

    Args:
        aval: The array, or its global shape and dtype.
        sharding: Its sharding.

    Returns:
        The bytes.
    """
    if sharding.memory_kind == HOST_MEMORY:
        return 0
    return math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize
