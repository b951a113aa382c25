"""Parts of a planned program, and values at their borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax import Array
from jax.sharding import PartitionSpec

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, without_partial
from meshwise.plan.restricted import GraphPart
from meshwise.resharding.within import path
from meshwise.spmd.collectives import apply_step
from meshwise.spmd.lower import run_local
from meshwise.spmd.program import partition_spec
from meshwise.trace.program import Program


def part_program(program: Program, part: GraphPart) -> Program:
    """Return the equations of a part of a program's graph."""
    return Program(
        (*program.avals, *(program.avals[t] for t in part.copies)),
        part.graph.inputs,
        tuple(
            replace(program.nodes[i], inputs=op.inputs)
            for i, op in zip(part.operators, part.graph.operators, strict=True)
        ),
        part.graph.outputs,
        program.constants,
    )


def run_part(
    program: Program,
    part: GraphPart,
    mesh: LogicalMesh,
    args: Sequence[Array],
    *,
    in_order: bool,
) -> list[Array]:
    """Run a part on local tiles of its inputs.

    Args:
        program: The whole program.
        part: A part of its graph.
        mesh: The mesh; its axis names are bound by the caller's `shard_map`.
        args: Local tiles, in the order of the part's inputs.
        in_order: Keep collectives and loops apart by data (`spmd.order`).
    """
    own = part_program(program, part)
    return run_local(own, part.graph, part.decision, mesh, args, in_order=in_order)


def moved(
    value: Array, shape: tuple[int, ...], before: Layout, after: Layout, mesh: LogicalMesh
) -> Array:
    """Return a local tile in another layout.

    Args:
        value: The tile.
        shape: The shape of the whole tensor.
        before: How it lies.
        after: How it shall lie.
        mesh: The mesh.
    """
    layout = before
    if before != after:
        for step in path(shape, value.dtype.itemsize, before, after, mesh):
            value = apply_step(value, layout, step, mesh.sizes, mesh.names)
            layout = step.layout
    return value


def border_spec(layout: Layout, names: Sequence[str]) -> PartitionSpec:
    """Return the PartitionSpec of a value between programs.

    The terms of a partial sum lie one behind the other along a dim before all others.

    Args:
        layout: The layout of the value.
        names: The names of the mesh axes.

    Returns:
        The spec.
    """
    whole = partition_spec(without_partial(layout), names)
    if not layout.partial:
        return whole
    return PartitionSpec(tuple(names[a] for a in layout.partial), *whole)


def packed(value: Array, layout: Layout) -> Array:
    """Give a local tile the shape in which it leaves a program.

    Args:
        value: The tile.
        layout: Its layout.

    Returns:
        The tile; a term of a partial sum has one more dim.
    """
    return value[None] if layout.partial else value


def unpacked(value: Array, layout: Layout) -> Array:
    """Give a local tile that came into a program its own shape.

    Args:
        value: The tile as it came in.
        layout: Its layout.

    Returns:
        The tile.
    """
    return value[0] if layout.partial else value
