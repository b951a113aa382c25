"""Methods as restrictions of the planner's space: same strategies, same costs, other deciders.

Every method is a function (graph, mesh, info) -> `Restriction`; the same solver does the rest, so
that a method gets the best plan of its kind, and `IntraOp` searches a space that contains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwise.baselines.roles import BATCH, OPTIMIZER, PARAMETER, InputInfo
from meshwise.baselines.weights import tensor_loops
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout, replicated
from meshwise.graph.light import is_light
from meshwise.graph.loops import NONE
from meshwise.intra.batch_loops import batch_loops, operator_paths
from meshwise.intra.options import AllowedChoices, OperatorPath, Restriction

_NOT_SPLIT = frozenset((NONE,))
# Inputs that ZeRO splits. Gradients are no inputs: the solver may reduce-scatter them for the split
# state.
STAGE_2, STAGE_3 = frozenset((OPTIMIZER,)), frozenset((OPTIMIZER, PARAMETER))
ALL_TO_ALL = "all-to-all"
# Nothing that is reduced is cut, nothing that is cut is put together again.
ALL_REDUCE_ONLY = frozenset((ALL_TO_ALL, "all-gather", "reduce-scatter"))


def split_largest(shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> Layout:
    """Return a layout that splits the largest dim that all axes divide, or else several dims."""
    order = sorted(range(len(shape)), key=lambda d: (-shape[d], d))
    total = math.prod(sizes[a] for a in axes)
    for d in order:
        if shape[d] % total == 0:
            return Layout(tuple(tuple(axes) if x == d else () for x in range(len(shape))))
    dims: list[tuple[int, ...]] = [()] * len(shape)
    for a in axes:
        for d in order:
            parts = math.prod(sizes[b] for b in dims[d]) * sizes[a]
            if shape[d] % parts == 0:
                dims[d] = (*dims[d], a)
                break
    return Layout(tuple(dims))


def split_axes(mesh: LogicalMesh) -> tuple[int, ...]:
    """Return the axes of a mesh that have more than one device."""
    return tuple(a for a, size in enumerate(mesh.sizes) if size > 1)


def _split_dim(shape: Sequence[int], dim: int, axes: Sequence[int], sizes: Sequence[int]) -> Layout:
    """Split one dim over as many of the axes, from the first, as divide it."""
    used: tuple[int, ...] = ()
    for a in axes:
        if sizes[a] > 1 and shape[dim] % math.prod(sizes[b] for b in (*used, a)) == 0:
            used = (*used, a)
    return Layout(tuple(used if d == dim else () for d in range(len(shape))))


def _over_batch(
    graph: Graph, mesh: LogicalMesh, info: InputInfo, axes: Sequence[int]
) -> dict[OperatorPath, AllowedChoices]:
    """Return the choices of operators that decide alone: over the batch along `axes`, or none."""
    found = batch_loops(graph, info.batch_dims)
    return {
        path: tuple(
            found[path] if a in axes and size > 1 else _NOT_SPLIT
            for a, size in enumerate(mesh.sizes)
        )
        for path, op in operator_paths(graph)
        if not op.bodies and not is_light(op) and path in found
    }


def _batch_pins(
    graph: Graph, mesh: LogicalMesh, info: InputInfo, axes: Sequence[int]
) -> dict[int, Layout]:
    return {
        i: _split_dim(graph.tensors[graph.inputs[i]].shape, dim, axes, mesh.sizes)
        for i, dim in info.batch_dims.items()
    }


def _zero(
    graph: Graph, mesh: LogicalMesh, info: InputInfo, name: str, split: frozenset[str]
) -> Restriction:
    axes = split_axes(mesh)
    pins = _batch_pins(graph, mesh, info, axes)
    for i, role in enumerate(info.roles):
        shape = graph.tensors[graph.inputs[i]].shape
        if role in split:
            pins[i] = split_largest(shape, axes, mesh.sizes)
        elif role != BATCH:
            pins[i] = replicated(len(shape))
    return Restriction(
        name=name,
        pins=pins,
        allowed=_over_batch(graph, mesh, info, axes),
        forbid=frozenset((ALL_TO_ALL,)),
    )


def data_parallel(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """State replicated, batch split over all axes, gradients all-reduced."""
    base = _zero(graph, mesh, info, "DataParallel", frozenset())
    return Restriction(
        name=base.name,
        pins=base.pins,
        allowed=base.allowed,
        # Without them there is no sharded update.
        forbid=ALL_REDUCE_ONLY,
    )


def zero2(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Data parallel with optimizer state and gradients split: ZeRO stage 2."""
    return _zero(graph, mesh, info, "Zero2", STAGE_2)


def zero3(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Parameters split too, gathered where they are used: ZeRO stage 3."""
    return _zero(graph, mesh, info, "Zero3", STAGE_3)


def megatron(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Axis 0 splits the batch, the others weights and heads; all-reduce only.

    Which weights are split by column and which by row is left to the solver; every product is
    split that can be.
    """
    pins = _batch_pins(graph, mesh, info, (0,))
    return Restriction(
        name="Megatron",
        pins=pins,
        input_axes={
            i: frozenset(range(1, len(mesh.sizes)))
            for i, role in enumerate(info.roles)
            if role != BATCH
        },
        allowed=_tensor_parallel(graph, mesh, info),
        forbid=ALL_REDUCE_ONLY,
    )


def _tensor_parallel(
    graph: Graph, mesh: LogicalMesh, info: InputInfo
) -> dict[OperatorPath, AllowedChoices]:
    """Axis 0 runs over the batch, the others over loops of weights or heads."""
    found = batch_loops(graph, info.batch_dims)
    allowed: dict[OperatorPath, AllowedChoices] = {}
    for path, op in operator_paths(graph):
        if op.bodies or is_light(op) or path not in found:
            continue
        rows = found[path]
        loops = tensor_loops(op, rows)
        choices: list[frozenset[int]] = [rows if mesh.sizes[0] > 1 else _NOT_SPLIT]
        for size in mesh.sizes[1:]:
            fit = frozenset(x for x in loops if op.rule.loops[x].size % size == 0)
            # A lookup or a sort may be done by all; a product is split wherever it can be.
            must = op.heavy and fit and size > 1
            choices.append(fit if must else fit | _NOT_SPLIT)
        allowed[path] = tuple(choices)
    return allowed


def undivided_products(
    graph: Graph, mesh: LogicalMesh, batch_dims: Mapping[int, int]
) -> dict[OperatorPath, tuple[int, ...]]:
    """Return the products that Megatron's tensor axis cannot split, as none of their dims divides.

    Args:
        graph: The graph.
        mesh: Its axis 1 is the tensor axis.
        batch_dims: Positions among the graph's inputs -> the batch dim.

    Returns:
        For each of them the sizes of the dims of weights or heads, of which none divides.
    """
    rows_of, size = batch_loops(graph, batch_dims), mesh.sizes[1]
    found: dict[OperatorPath, tuple[int, ...]] = {}
    for path, op in operator_paths(graph):
        if op.heavy and not op.bodies and path in rows_of:
            loops = tensor_loops(op, rows_of[path])
            sizes = tuple(op.rule.loops[x].size for x in sorted(loops))
            if sizes and all(n % size for n in sizes):
                found[path] = sizes
    return found


def heuristic(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Largest dim of every input split, the rest by propagation.

    Source: docs/facts.md section 6, the ablation of figure 8.
    """
    del info  # It treats all inputs alike.
    axes = split_axes(mesh)
    pins = {
        i: split_largest(graph.tensors[t].shape, axes, mesh.sizes)
        for i, t in enumerate(graph.inputs)
    }
    return Restriction(name="Heuristic", pins=pins, greedy=True)
