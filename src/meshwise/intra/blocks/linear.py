"""Which tensors may stay partial sums between operators, and the operators that carry them.

A dense product leaves a partial sum when its reduced loop is split.  Adding two of them before
one reduction (the three input gradients of attention, tied embeddings, accumulators) saves
collectives, so such additions get strategies of their own; so do the linear views (transpose,
reshape, widening convert, product with a scalar) on the way to them.

So do sums over all elements of a tensor, and what adds them up: the norm of all gradients is one
all-reduce of a scalar, not one for each of them.  In the body of a loop so do sums along any dims:
the gradients of biases and norms are added over all micro-batches, and reduced once a step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import SUM


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def _adds_up(graph: Graph, op: Operator, *, in_body: bool) -> bool:
    """Whether an operator adds up a tensor: to one number, or in a body along any dims."""
    (result,) = op.outputs if len(op.outputs) == 1 else (None,)
    return (
        result is not None
        and (in_body or not graph.tensors[result].shape)
        and _is_float(graph.tensors[result].dtype)
        and any(x.kind == SUM for x in op.rule.loops)
    )


def _carries(graph: Graph, op: Operator, may: Collection[int]) -> bool:
    """Whether an addition of two tensors may have partial operands."""
    return all(
        t in may or (graph.tensors[t].generated and not graph.tensors[t].shape) for t in op.inputs
    ) and any(t in may for t in op.inputs)


def _adds_two(graph: Graph, op: Operator) -> bool:
    if len(op.inputs) != 2 or len(op.outputs) != 1 or not any(len(g) == 2 for g in op.rule.linear):
        return False
    shapes = {graph.tensors[t].shape for t in (*op.inputs, *op.outputs)}
    return len(shapes) == 1


def _viewed(graph: Graph, op: Operator) -> int:
    """Operand that a linear view shows, or -1."""
    if len(op.outputs) != 1:
        return -1
    size = math.prod(graph.tensors[op.outputs[0]].shape)
    for group in op.rule.linear:
        if len(group) != 1:
            continue
        (index,) = group
        others = (graph.tensors[t] for i, t in enumerate(op.inputs) if i != index)
        same = math.prod(graph.tensors[op.inputs[index]].shape) == size
        if same and all(not o.shape or math.prod(o.shape) == 1 for o in others):
            return index
    return -1


def carriers(
    graph: Graph, light: list[bool], carries: Sequence[int] | None
) -> tuple[set[int], set[int]]:
    """Find the operators that get strategies of their own to carry partial sums.

    Args:
        graph: The graph, or the body of an operator.
        light: For each operator whether it is light.
        carries: In a body the positions of its carries among the inputs.

    Returns:
        Positions of these additions and views, and the tensors that may be partial.
    """
    may: set[int] = {
        graph.inputs[i] for i in carries or () if _is_float(graph.tensors[graph.inputs[i]].dtype)
    }
    sums: set[int] = set()
    views: dict[int, int] = {}
    for i, op in enumerate(graph.operators):
        if op.bodies or (not light[i] and any(x.kind == SUM for x in op.rule.loops)):
            may.update(t for t in op.outputs if _is_float(graph.tensors[t].dtype))
        elif light[i] and _adds_up(graph, op, in_body=carries is not None):
            may.update(op.outputs)
        elif light[i] and _adds_two(graph, op) and _carries(graph, op, may):
            sums.add(i)
            may.update(op.outputs)
        elif light[i]:
            shown = _viewed(graph, op)
            if shown >= 0 and op.inputs[shown] in may:
                views[i] = shown
                may.update(op.outputs)
    wanted: set[int] = {t for i in sums for t in graph.operators[i].inputs}
    if carries is not None:
        wanted.update(graph.outputs)
    used: set[int] = set(sums)
    for i in sorted(views, reverse=True):
        op = graph.operators[i]
        if op.outputs[0] in wanted:
            used.add(i)
            wanted.add(op.inputs[views[i]])
    return used, may
