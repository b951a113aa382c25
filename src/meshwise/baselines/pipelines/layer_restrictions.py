"""Restrictions of methods that only the evaluations have: Megatron's optimizer, experts.

As `meshwise.baselines.restrictions`: each is a function (graph, mesh, info) -> `Restriction`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwise.baselines.restrictions import (
    ALL_REDUCE_ONLY,
    ALL_TO_ALL,
    STAGE_2,
    STAGE_3,
    megatron,
    split_axes,
    split_largest,
    zero2,
    zero3,
)
from meshwise.baselines.roles import BATCH, OPTIMIZER, PARAMETER, InputInfo
from meshwise.baselines.weights import common_loops, tensors_of
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, used_axes
from meshwise.intra.batch_loops import batch_loops, operator_paths
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.options import OperatorPath, Restriction

# A weight with a dim of experts is at least a table for each of them.
_EXPERT_DIMS = 3


def megatron_sharded(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Megatron with its distributed optimizer: optimizer state split over axis 0 as well.

    Gradients are reduced and scattered along axis 0 after the last micro-batch, new parameters
    gathered; activations know all-reduce only.
    """
    base = megatron(graph, mesh, info)
    sharded: dict[int, tuple[Layout, ...]] = {}
    for i, role in enumerate(info.roles):
        layouts = whole_layouts(graph.tensors[graph.inputs[i]].shape, mesh.sizes)
        split = tuple(w for w in layouts if 0 in used_axes(w))
        if role == OPTIMIZER and mesh.sizes[0] > 1 and split:
            sharded[i] = split
    return Restriction(
        name="MegatronSharded",
        pins=base.pins,
        input_axes={i: axes for i, axes in base.input_axes.items() if i not in sharded},
        layouts=sharded,
        allowed=base.allowed,
        forbid=frozenset((ALL_TO_ALL,)),
        forbid_inside=ALL_REDUCE_ONLY,
    )


def expert_zero2(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Experts split, all else data parallel with ZeRO stage 2: DeepSpeed's mixture of experts.

    Tokens are split over all axes; each axis that divides the experts splits them, from the last
    axis on, and tokens go to their experts and back by all-to-all.
    """
    return _experts(graph, mesh, info, zero2(graph, mesh, info), "ExpertZero2", STAGE_2)


def expert_zero3(graph: Graph, mesh: LogicalMesh, info: InputInfo) -> Restriction:
    """Return the same with ZeRO stage 3."""
    return _experts(graph, mesh, info, zero3(graph, mesh, info), "ExpertZero3", STAGE_3)


def _experts(
    graph: Graph,
    mesh: LogicalMesh,
    info: InputInfo,
    base: Restriction,
    name: str,
    split: frozenset[str],
) -> Restriction:
    found = batch_loops(graph, info.batch_dims)
    allowed = dict(base.allowed)
    for path, op in operator_paths(graph):
        loops = expert_loops(op, found[path]) if path in allowed and op.heavy else frozenset[int]()
        if loops:
            # Where rows go to their experts, they divide both.
            (loop,) = sorted(loops)[:1]
            count = math.gcd(*(op.rule.loops[x].size for x in (loop, *_group_loops(op))))
            axes = _dividing(count, mesh.sizes)
            allowed[path] = tuple(
                loops if a in axes else choices for a, choices in enumerate(allowed[path])
            )
    pins = dict(base.pins)
    dims = expert_inputs(graph, info, found)
    shapes = {i: graph.tensors[t].shape for i, t in enumerate(graph.inputs)}
    of_shape = {shapes[i]: d for i, d in dims.items()}
    for i, role in enumerate(info.roles):
        # State of the optimizer has the shape of its parameter.
        if role != BATCH and shapes[i] in of_shape:
            d = of_shape[shapes[i]]
            axes = _dividing(shapes[i][d], mesh.sizes)
            # Where not all axes divide the experts, those left over are ZeRO's.
            rest = tuple(a for a in split_axes(mesh) if a not in axes) if role in split else ()
            pins[i] = _with_experts(shapes[i], d, axes, rest, mesh.sizes)
    return Restriction(name=name, pins=pins, allowed=allowed)


def _with_experts(
    shape: Sequence[int],
    dim: int,
    axes: tuple[int, ...],
    rest: tuple[int, ...],
    sizes: Sequence[int],
) -> Layout:
    """Experts split over `axes`, the largest other dim over `rest`."""
    inner = split_largest([1 if x == dim else n for x, n in enumerate(shape)], rest, sizes)
    return Layout(tuple(axes if x == dim else inner.dims[x] for x in range(len(shape))))


def _dividing(count: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Axes that together divide a number, the last ones first, in ascending order."""
    axes: tuple[int, ...] = ()
    for a in reversed(range(len(sizes))):
        if sizes[a] > 1 and count % (math.prod(sizes[b] for b in axes) * sizes[a]) == 0:
            axes = (a, *axes)
    return axes


def expert_loops(op: Operator, rows: frozenset[int]) -> frozenset[int]:
    """Loops of a product over experts: they run over all its tensors, one of which is a weight.

    Attention as one operator has none.  Where rows go to their experts, it is the loop of that.
    """
    if op.rule.dispatch is not None:
        return frozenset((op.rule.dispatch.loop,))
    tensors = tensors_of(op)
    if op.rule.ring is not None or all(loops & rows for loops in tensors):
        return frozenset()
    return common_loops(tensors) - rows


def _group_loops(op: Operator) -> frozenset[int]:
    """Return the loop that matrices follow where rows go to their experts; empty elsewhere."""
    return frozenset() if op.rule.dispatch is None else frozenset((op.rule.dispatch.groups,))


def expert_inputs(
    graph: Graph, info: InputInfo, found: Mapping[OperatorPath, frozenset[int]]
) -> dict[int, int]:
    """Return the dim of experts of each parameter that has one, by position among the inputs.

    Args:
        graph: The graph.
        info: Its inputs.
        found: For each operator its loops over the batch.
    """
    products = {
        path: loops
        for path, op in operator_paths(graph)
        if op.heavy
        and path in found
        and (loops := _group_loops(op) or expert_loops(op, found[path]))
    }
    dims: dict[int, int] = {}
    for i, role in enumerate(info.roles if products else ()):
        rank = len(graph.tensors[graph.inputs[i]].shape)
        for d in range(rank if role == PARAMETER and rank >= _EXPERT_DIMS else 0):
            mine = batch_loops(graph, {i: d})
            if any(mine.get(path, frozenset()) & loops for path, loops in products.items()):
                dims[i] = d
                break
    return dims
