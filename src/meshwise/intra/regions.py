"""The graph and the bodies inside it, flat: blocks, and the groups of uses of each tensor."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.graph.graph import Graph
from meshwise.intra.blocks.partition import CLUSTER, Blocks, partition
from meshwise.intra.options import OperatorPath

# Uses of one tensor with more heavy operators between them than this get copies of their own:
# the backward pass may gather a weight again (ZeRO-3), while dx and dW share what they both use.
# Three products of one tensor (q, k, v) and their gradients are at most four apart.
FAR_APART = 4

OWN_GROUP = 0
END = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A graph in which operators run equally often.

    Attributes:
        index: Position in the list of regions; 0 is the whole graph.
        graph: Its graph.
        path: For each enclosing operator its position and the number of its body.
        trips: How often it runs in one step.
        blocks: Partition of its operators.
        groups: For each use (operator, operand) its copy group; END stands for the graph's
            results.  Uses inside of the block that makes the tensor have OWN_GROUP.
        users: For each tensor the operators that use it, END for the graph's results.
    """

    index: int
    graph: Graph
    path: OperatorPath
    trips: int
    blocks: Blocks
    groups: dict[tuple[int, int], int]
    users: tuple[tuple[int, ...], ...]


def _groups(graph: Graph, blocks: Blocks) -> dict[tuple[int, int], int]:
    """Number the uses of every tensor: neighbours share a copy."""
    heavy_before: list[int] = []
    count = 0
    for op in graph.operators:
        count += op.heavy or bool(op.bodies)
        heavy_before.append(count)
    producer = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    # A partial sum is reduced once, however far its users are apart.
    partial = blocks.may_be_partial.difference(graph.inputs)
    last: dict[int, tuple[int, int]] = {}
    groups: dict[tuple[int, int], int] = {}
    for i, op in enumerate(graph.operators):
        for k, t in enumerate(op.inputs):
            source = producer.get(t, -1)
            inside = source >= 0 and blocks.block_of[source] == blocks.block_of[i] >= 0
            if inside and blocks.blocks[blocks.block_of[i]].kind == CLUSTER:
                groups[i, k] = OWN_GROUP
                continue
            group, position = last.get(t, (OWN_GROUP, 0))
            if group == OWN_GROUP or (heavy_before[i] - position > FAR_APART and t not in partial):
                group += 1
            last[t] = (group, heavy_before[i])
            groups[i, k] = group
    for j, t in enumerate(graph.outputs):
        group, position = last.get(t, (OWN_GROUP, 0))
        if group == OWN_GROUP or (count - position > FAR_APART and t not in partial):
            group += 1
        last[t] = (group, count)
        groups[END, j] = group
    return groups


def _users(graph: Graph) -> tuple[tuple[int, ...], ...]:
    users: list[list[int]] = [[] for _ in graph.tensors]
    for i, op in enumerate(graph.operators):
        for t in op.inputs:
            users[t].append(i)
    for t in graph.outputs:
        users[t].append(END)
    return tuple(map(tuple, users))


def regions(graph: Graph) -> tuple[Region, ...]:
    """Return the whole graph first, then its bodies, outer before inner.

    Args:
        graph: The graph.
    """
    out: list[Region] = []
    todo: list[tuple[Graph, OperatorPath, int, tuple[int, ...] | None]] = [(graph, (), 1, None)]
    while todo:
        here, path, trips, carries = todo.pop(0)
        blocks = partition(here, carries)
        region = Region(
            index=len(out),
            graph=here,
            path=path,
            trips=trips,
            blocks=blocks,
            groups=_groups(here, blocks),
            users=_users(here),
        )
        out.append(region)
        for i, op in enumerate(here.operators):
            if op.structure is None:
                continue
            for p, (part, body) in enumerate(zip(op.structure.parts, op.bodies, strict=True)):
                carried = op.structure.carry_inputs(p)
                todo.append((body, (*path, i, p), trips * part.trips, carried))
    return tuple(out)
