"""Which values of a graph get a buffer, and from when to when they are live.

Time inside one graph is the position of the operator that runs; its length is the end.

Source: XLA fuses element-wise chains and treats reshapes as bitcasts; the rules below are the
part of that which is decided by the graph alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.light import is_bitcast, is_light


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """Lifetimes of the values of one graph.

    Attributes:
        root: For each tensor the tensor whose buffer it shares; itself for most.
        start: For each tensor when its buffer is written; -1 for inputs.
        end: For each root the last time at which its buffer is read.
        fused: Values that never get a buffer.
        last_use_of: For each tensor its own last use, those of its bitcasts not included.
    """

    root: tuple[int, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    fused: frozenset[int]
    last_use_of: tuple[int, ...]


def writes_through(op: Operator) -> bool:
    """Return whether an operator makes each element from few others: its user can repeat it.

    Args:
        op: The operator.
    """
    return is_light(op) and not any(loop.kind != "parallel" for loop in op.rule.loops)


def liveness(graph: Graph) -> Liveness:
    """Return the lifetimes of the values of one graph.

    Args:
        graph: The graph.
    """
    count, end_of_time = len(graph.tensors), len(graph.operators)
    root = list(range(count))
    start = [-1] * count
    users: list[list[int]] = [[] for _ in range(count)]
    for i, op in enumerate(graph.operators):
        for t in op.inputs:
            users[t].append(i)
        for t in op.outputs:
            start[t] = i
        if is_bitcast(op):
            root[op.outputs[0]] = root[op.inputs[0]]
    for t in graph.outputs:
        users[t].append(end_of_time)
    last = [max((*users[t], start[t])) for t in range(count)]
    end = list(last)
    for t in reversed(range(count)):
        if root[t] != t:
            end[root[t]] = max(end[root[t]], end[t])
    fused: set[int] = set()
    for op in graph.operators:
        for t in op.outputs:
            if graph.tensors[t].generated or (
                writes_through(op) and _is_fused(graph.operators, op, users[t], end_of_time)
            ):
                fused.add(t)
    return Liveness(
        root=tuple(root),
        start=tuple(start),
        end=tuple(end),
        fused=frozenset(fused),
        last_use_of=tuple(last),
    )


def _is_fused(
    operators: Sequence[Operator], op: Operator, users: Sequence[int], end_of_time: int
) -> bool:
    """A light value is fused into its only user, a broadcast into all of them."""
    if not users or end_of_time in users:
        return False
    if op.kind != "broadcast_in_dim" and len(users) > 1:
        return False
    return all(is_light(operators[i]) and not is_bitcast(operators[i]) for i in users)
