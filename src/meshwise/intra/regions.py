"""The graph and the bodies inside it, flat: blocks, and the groups of uses of each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from meshwise.graph.graph import Graph
from meshwise.intra.blocks.partition import CLUSTER, Blocks, partition
from meshwise.intra.options import OperatorPath
from meshwise.pieces.phases import ProgramCut

# Uses of one tensor with more heavy operators between them than this get copies of their own:
# the backward pass may gather a weight again (ZeRO-3), while dx and dW share what they both use.
# Three products of one tensor (q, k, v) and their gradients are at most four apart.
FAR_APART = 4

OWN_GROUP = 0
END = -1

_NONE = frozenset[int]()
_ONE_PROGRAM = ProgramCut(second=_NONE, again=_NONE, given=_NONE)


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
        repeated: Uses that two programs make their copies for, as (block, tensor, group).
    """

    index: int
    graph: Graph
    path: OperatorPath
    trips: int
    blocks: Blocks
    groups: dict[tuple[int, int], int]
    users: tuple[tuple[int, ...], ...]
    repeated: frozenset[tuple[int, int, int]]


def _groups(graph: Graph, blocks: Blocks, cut: ProgramCut) -> dict[tuple[int, int], int]:
    """Number the uses of every tensor: neighbours in one program share a copy."""
    heavy_before: list[int] = []
    count = 0
    for op in graph.operators:
        count += op.heavy or bool(op.bodies)
        heavy_before.append(count)
    producer = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    # A partial sum is reduced once, however far its users are apart.
    partial = blocks.may_be_partial.difference(graph.inputs)
    last: dict[tuple[int, bool], tuple[int, int]] = {}
    groups: dict[tuple[int, int], int] = {}
    most: Counter[int] = Counter()
    in_first: set[tuple[int, int]] = set()
    # A copy that the first program hands over is there until the second one has done with it.
    handed: set[tuple[int, int]] = set()

    def group_of(t: int, position: int, *, is_second: bool) -> int:
        key = (t, is_second and t in cut.given)
        group, before = last.get(key, (OWN_GROUP, 0))
        is_far = position - before > FAR_APART and t not in partial and (t, group) not in handed
        if group == OWN_GROUP or is_far:
            most[t] += 1
            group = most[t]
        last[key] = (group, position)
        if not is_second:
            in_first.add((t, group))
        elif (t, group) in in_first:
            handed.add((t, group))
        return group

    for i, op in enumerate(graph.operators):
        for k, t in enumerate(op.inputs):
            source = producer.get(t, -1)
            inside = source >= 0 and blocks.block_of[source] == blocks.block_of[i] >= 0
            if inside and blocks.blocks[blocks.block_of[i]].kind == CLUSTER:
                groups[i, k] = OWN_GROUP
                continue
            groups[i, k] = group_of(t, heavy_before[i], is_second=i in cut.second)
    for j, t in enumerate(graph.outputs):
        groups[END, j] = group_of(t, count, is_second=True)
    return groups


def _users(graph: Graph) -> tuple[tuple[int, ...], ...]:
    users: list[list[int]] = [[] for _ in graph.tensors]
    for i, op in enumerate(graph.operators):
        for t in op.inputs:
            users[t].append(i)
    for t in graph.outputs:
        users[t].append(END)
    return tuple(map(tuple, users))


def regions(
    graph: Graph, cuts: Mapping[OperatorPath, ProgramCut] | None = None
) -> tuple[Region, ...]:
    """Return the whole graph first, then its bodies, outer before inner.

    Args:
        graph: The graph.
        cuts: By the path of a region, how two programs run its operators; None: one program runs
            all.
    """
    cuts = cuts or {}
    out: list[Region] = []
    todo: list[tuple[Graph, OperatorPath, int, tuple[int, ...] | None]] = [(graph, (), 1, None)]
    while todo:
        here, path, trips, carries = todo.pop(0)
        blocks, cut = partition(here, carries), cuts.get(path, _ONE_PROGRAM)
        groups = _groups(here, blocks, cut)
        region = Region(
            index=len(out),
            graph=here,
            path=path,
            trips=trips,
            blocks=blocks,
            groups=groups,
            users=_users(here),
            repeated=frozenset(
                (blocks.block_of[i], t, groups[i, k])
                for i in cut.again
                for k, t in enumerate(here.operators[i].inputs)
                if t in cut.given
            ),
        )
        out.append(region)
        for i, op in enumerate(here.operators):
            if op.structure is None:
                continue
            for p, (part, body) in enumerate(zip(op.structure.parts, op.bodies, strict=True)):
                carried = op.structure.carry_inputs(p)
                todo.append((body, (*path, i, p), trips * part.trips, carried))
    return tuple(out)
