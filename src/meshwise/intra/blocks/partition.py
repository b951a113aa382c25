"""Cuts a graph into blocks: operators that decide alone, and clusters of light operators.

A cluster ties the choices of its members: their loops are joined into classes wherever a tensor
inside the cluster connects them, and one choice maps each mesh axis to a class.  A cluster need
not be convex, since it only ties choices; the plan speaks about every operator.

Source: Alpa section 4.2 merges cheap operators into their deepest operand; the classes are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.graph.graph import Graph
from meshwise.graph.light import is_light
from meshwise.graph.loops import LoopRule
from meshwise.intra.blocks.linear import carriers
from meshwise.system.identity import Same
from meshwise.system.union_find import UnionFind

SINGLE = "single"
CLUSTER = "cluster"
BODIES = "bodies"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorBlock:
    """Operators that decide together.

    Attributes:
        kind: `single`, `cluster` or `bodies`.
        members: Positions of the operators, ascending.
        classes: For a cluster: for each member the class of each of its loops, -1 for none.
        num_classes: Classes to which a mesh axis may be mapped.
    """

    kind: str
    members: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...] = ()
    num_classes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Partition of the operators of one graph.

    Attributes:
        blocks: In the order of their first members; generated values are in none.
        block_of: For each operator its block, -1 for a generated one.
        may_be_partial: Tensors that may stay partial sums between blocks.
        fused: Tensors between two light operators that decide alone and have no other reader:
            compilers fuse the two, so that the tensor is in no memory.
    """

    blocks: tuple[OperatorBlock, ...]
    block_of: tuple[int, ...]
    may_be_partial: frozenset[int]
    fused: frozenset[int]


def _major(rule: LoopRule, loops: tuple[int, ...]) -> int:
    """The outermost loop of a dim that can be split, -1 if none can."""
    return next((x for x in loops if rule.loops[x].size > 1), -1)


class _Joint(NamedTuple):
    """One operator's result as another one's operand.

    Attributes:
        fits: Whether the two share loops and the user spoils none of them.
        pairs: Loops that they share: (of the maker, of the user).
    """

    fits: bool
    pairs: tuple[tuple[int, int], ...]


def _joint_of(before: LoopRule, result: int, after: LoopRule, operand: int) -> _Joint:
    majors = [
        (_major(before, above), _major(after, below))
        for above, below in zip(before.results[result], after.operands[operand], strict=True)
    ]
    pairs = tuple((x, y) for x, y in majors if x >= 0 and y >= 0)
    minor = {
        x
        for dims in (*after.operands, *after.results)
        for loops in dims
        for x in [x for x in loops if after.loops[x].size > 1][1:]
    }
    spoils = any(x >= 0 and y < 0 for x, y in majors) or any(y in minor for _, y in pairs)
    return _Joint(bool(pairs) and not spoils, pairs)


class _Clusters:
    """Clusters while they grow: a union-find over operators and one over their loops."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.num_uses = [0] * len(graph.tensors)
        for op in graph.operators:
            for t in op.inputs:
                self.num_uses[t] += 1
        self.producer = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
        self.sets: UnionFind[int] = UnionFind()
        self.largest: dict[int, int] = {}
        self.open_uses: dict[int, int] = {}
        self.loops: UnionFind[tuple[int, int]] = UnionFind()
        self.owners: dict[tuple[int, int], set[int]] = {}
        self.joints: dict[tuple[int, int, int, int], _Joint] = {}
        # Equal equations share their rule.
        numbers: dict[Same, int] = {}
        self.rule_of = [numbers.setdefault(Same(op.rule), len(numbers)) for op in graph.operators]
        self.reach = self._reach()

    def size(self, t: int) -> int:
        """Elements of a tensor."""
        return math.prod(self.graph.tensors[t].shape)

    def _reach(self) -> list[int]:
        """Largest tensor that follows from each one through light operators, scalars excepted."""
        reach = [self.size(t) for t in range(len(self.graph.tensors))]
        for op in reversed(self.graph.operators):
            if is_light(op) and op.outputs:
                largest = max(reach[t] for t in op.outputs)
                for t in op.inputs:
                    if reach[t] > 1 or self.size(t) > 1:
                        reach[t] = max(reach[t], largest)
        return reach

    def start(self, i: int) -> None:
        """Open a cluster of one operator."""
        op = self.graph.operators[i]
        self.sets.find(i)
        self.largest[i] = max((self.size(t) for t in (*op.inputs, *op.outputs)), default=1)
        self.open_uses[i] = sum(self.num_uses[t] for t in op.outputs)
        for loop, info in enumerate(op.rule.loops):
            if info.size > 1:
                self.loops.find((i, loop))
                self.owners[i, loop] = {i}

    def _joint(self, i: int, operand: int) -> _Joint:
        op = self.graph.operators[i]
        t = op.inputs[operand]
        before = self.graph.operators[self.producer[t]]
        result = before.outputs.index(t)
        key = (self.rule_of[self.producer[t]], result, self.rule_of[i], operand)
        if key not in self.joints:
            self.joints[key] = _joint_of(before.rule, result, op.rule, operand)
        return self.joints[key]

    def fits(self, i: int, operand: int) -> bool:
        """Whether operator `i` shares loops with this operand and spoils none of them."""
        return self._joint(i, operand).fits

    def connect(self, i: int, operand: int) -> None:
        """Join loop classes through one operand, except where two loops of one operator meet."""
        source = self.producer[self.graph.operators[i].inputs[operand]]
        for above, below in self._joint(i, operand).pairs:
            self._join((source, above), (i, below))

    def _join(self, x: tuple[int, int], y: tuple[int, int]) -> None:
        a, b = self.loops.find(x), self.loops.find(y)
        if a == b or not self.owners[a].isdisjoint(self.owners[b]):
            return
        if len(self.owners[a]) < len(self.owners[b]):
            a, b = b, a
        self.loops.join(a, b)
        self.owners[a] |= self.owners.pop(b)

    def connect_readers(self) -> None:
        """Join loop classes of the members of a cluster that read one tensor from outside.

        Else a softmax could not be split over its classes: its maximum and its exponentials read
        the same logits, and the dim that both follow meets in no result of the cluster.
        """
        first: dict[tuple[int, int, int], tuple[int, int]] = {}
        for i in self.sets.parent:
            op, root = self.graph.operators[i], self.sets.find(i)
            for t, dims in zip(op.inputs, op.rule.operands, strict=True):
                if self.graph.tensors[t].generated or self._is_made_in(t, root):
                    continue
                for d, loops in enumerate(dims):
                    loop = _major(op.rule, loops)
                    if loop >= 0:
                        self._join(first.setdefault((root, t, d), (i, loop)), (i, loop))

    def _is_made_in(self, t: int, root: int) -> bool:
        source = self.producer.get(t, -1)
        return source in self.sets.parent and self.sets.find(source) == root

    def merge(self, a: int, b: int, uses: int) -> None:
        """Put cluster `b` into cluster `a`; `uses` of their tensors lie inside now."""
        self.sets.join(a, b)
        self.largest[a] = max(self.largest[a], self.largest[b])
        self.open_uses[a] += self.open_uses[b] - uses


def _grow(graph: Graph, own: set[int], clusters: _Clusters) -> None:
    depth = [0] * len(graph.tensors)
    for i, op in enumerate(graph.operators):
        level = 1 + max((depth[t] for t in op.inputs), default=0)
        for t in op.outputs:
            depth[t] = level
        if not is_light(op) or i in own or all(graph.tensors[t].generated for t in op.outputs):
            continue
        clusters.start(i)
        # The largest operand first: through a small one, such as the means of a batch norm, two
        # large operators would share a cluster but not their loops, and only one could be split.
        order = sorted(
            (
                k
                for k, t in enumerate(op.inputs)
                if not graph.tensors[t].generated and t in clusters.producer
            ),
            key=lambda k: (
                -clusters.size(op.inputs[k]),
                -clusters.reach[op.inputs[k]],
                -depth[op.inputs[k]],
                k,
            ),
        )
        reach = max((clusters.reach[t] for t in op.outputs), default=1)
        for k in order:
            source = clusters.producer.get(op.inputs[k], -1)
            if source not in clusters.sets.parent or not clusters.fits(i, k):
                continue
            mine, theirs = clusters.sets.find(i), clusters.sets.find(source)
            uses = sum(1 for t in op.inputs if clusters.producer.get(t, -2) == source)
            if mine == theirs:
                clusters.connect(i, k)
                continue
            size = max(math.prod(graph.tensors[op.inputs[k]].shape), reach)
            if size < clusters.largest[theirs]:
                continue
            if mine == i and k == order[0]:
                clusters.merge(theirs, mine, uses)
                clusters.connect(i, k)
            elif clusters.open_uses[theirs] == uses:
                clusters.merge(mine, theirs, uses)
                clusters.connect(i, k)


def _fused(graph: Graph, own: set[int]) -> frozenset[int]:
    uses = Counter((*(t for op in graph.operators for t in op.inputs), *graph.outputs))
    made = {t for i in own for t in graph.operators[i].outputs if uses[t] == 1}
    return frozenset(t for i in own for t in graph.operators[i].inputs if t in made)


def partition(graph: Graph, carries: Sequence[int] | None = None) -> Blocks:
    """Cut a graph into blocks.

    Args:
        graph: The graph, or the body of an operator.
        carries: In a body the positions of its carries among the inputs.
    """
    light = [is_light(op) for op in graph.operators]
    own, may = carriers(graph, light, carries)
    clusters = _Clusters(graph)
    _grow(graph, own, clusters)
    clusters.connect_readers()
    members: dict[int, list[int]] = {}
    kinds: dict[int, str] = {}
    for i, op in enumerate(graph.operators):
        if all(graph.tensors[t].generated for t in op.outputs):
            continue
        root = clusters.sets.find(i) if i in clusters.sets.parent else i
        kinds[i] = BODIES if op.bodies else SINGLE
        members.setdefault(root, []).append(i)
    blocks: list[OperatorBlock] = []
    block_of = [-1] * len(graph.operators)
    for root, ops in sorted(members.items(), key=lambda item: item[1][0]):
        for i in ops:
            block_of[i] = len(blocks)
        if root not in clusters.sets.parent:
            blocks.append(OperatorBlock(kind=kinds[ops[0]], members=tuple(ops)))
            continue
        numbers: dict[tuple[int, int], int] = {}
        classes: list[tuple[int, ...]] = []
        for i in ops:
            row: list[int] = []
            for loop, info in enumerate(graph.operators[i].rule.loops):
                if info.size <= 1:
                    row.append(-1)
                else:
                    row.append(numbers.setdefault(clusters.loops.find((i, loop)), len(numbers)))
            classes.append(tuple(row))
        blocks.append(
            OperatorBlock(
                kind=CLUSTER,
                members=tuple(ops),
                classes=tuple(classes),
                num_classes=len(numbers),
            )
        )
    return Blocks(
        blocks=tuple(blocks),
        block_of=tuple(block_of),
        may_be_partial=frozenset(may),
        fused=_fused(graph, own),
    )
