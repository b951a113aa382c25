"""Bytes of the buffers of a compiled pipeline on one device."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwise.graph.layout import Layout
from meshwise.program.instructions import Load, Receive, Run, Send
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.spmd.part import border_spec


def buffer_bytes(pipeline: Pipeline) -> list[dict[int, int]]:
    """For each mesh the bytes of each buffer on one device, by shapes and shardings alone."""
    program = pipeline.program
    shapes: list[dict[int, jax.ShapeDtypeStruct]] = [
        {load.buffer: _loaded(pipeline, load) for load in mesh.loads} for mesh in program.meshes
    ]
    sizes = [
        {load.buffer: _bytes(pipeline, m, shapes[m][load.buffer], load.layout) for load in x.loads}
        for m, x in enumerate(program.meshes)
    ]
    travelling: dict[int, tuple[jax.ShapeDtypeStruct, int]] = {}
    for m, _, instruction in program.in_order():
        match instruction:
            case Run():
                executable = pipeline.executables[instruction.program]
                shardings = executable.run.output_shardings
                made = dict(zip(executable.places, executable.out_avals, strict=True))
                for place, b in enumerate(instruction.outputs):
                    shapes[m][b] = made[place]
                    sizes[m][b] = local_bytes(made[place], shardings[place])
            case Send():
                aval = shapes[m][instruction.buffer]
                there = _bytes(pipeline, instruction.mesh, aval, instruction.layout)
                travelling[instruction.transfer] = aval, there
            case Receive():
                b = instruction.buffer
                shapes[m][b], sizes[m][b] = travelling.pop(instruction.transfer)
            case _:
                pass
    return sizes


def _loaded(pipeline: Pipeline, load: Load) -> jax.ShapeDtypeStruct:
    """Shape and dtype of what is there when the step begins."""
    if load.kind == "index":
        return jax.ShapeDtypeStruct((), np.int32)
    split = pipeline.layers.split
    aval = split.in_avals[load.number]
    shape = list(aval.shape)
    if load.kind == "rows":
        shape[split.batch_dims[load.number]] //= pipeline.schedule.num_microbatches
    return jax.ShapeDtypeStruct(tuple(shape), aval.dtype)


def _bytes(pipeline: Pipeline, mesh: int, aval: jax.ShapeDtypeStruct, layout: Layout) -> int:
    there = pipeline.meshes[mesh]
    return local_bytes(aval, NamedSharding(there, border_spec(layout, there.axis_names)))


def local_bytes(aval: jax.ShapeDtypeStruct | jax.Array, sharding: jax.sharding.Sharding) -> int:
    """Return the bytes of an array on one of its devices.

    Args:
        aval: The array, or its global shape and dtype.
        sharding: Its sharding.

    Returns:
        The bytes.
    """
    return math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize
