"""The shapes of blocks, by which equal blocks find their table; the same on all meshes."""

from __future__ import annotations

from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.loops import LoopRule
from meshwise.intra.blocks.partition import CLUSTER, OperatorBlock
from meshwise.intra.regions import OWN_GROUP, Region
from meshwise.intra.shapes import BlockShape, Member
from meshwise.system.identity import Same

# A tensor as a block sees it: id and copy group of the use (OWN_GROUP for what it makes itself).
Local = tuple[int, int]
# The shape of a block, its tensors in order, and a number that equal shapes share.
Known = tuple[BlockShape, tuple[Local, ...], int]


class BlockShapes:
    """Computes shapes; remembers those of the blocks of a region."""

    def __init__(self) -> None:
        self._op_ids: dict[object, int] = {}
        self._rule_ids: dict[Same, int] = {}
        self._shape_ids: dict[object, int] = {}
        self._known: dict[Same, dict[int, Known]] = {}

    def rule_id(self, rule: LoopRule) -> int:
        """A number that equal rules share."""
        found = self._rule_ids.get(Same(rule))
        if found is None:
            found = self._op_ids.setdefault(rule, len(self._op_ids))
            self._rule_ids[Same(rule)] = found
        return found

    def _op_id(self, op: Operator, tensors: tuple[Tensor, ...]) -> int:
        """A number that equal operators on equal tensors share."""
        key = (op.kind, op.detail, self.rule_id(op.rule), op.heavy, op.flop) + tuple(
            (t.shape, t.dtype, t.sharers) for t in tensors
        )
        return self._op_ids.setdefault(key, len(self._op_ids))

    def of_block(self, region: Region, number: int) -> Known:
        """The shape of a block of a region, its tensors in order, and the number of its shape."""
        known = self._known.setdefault(Same(region), {})
        if number not in known:
            known[number] = self._shape(region, region.blocks.blocks[number])
        return known[number]

    def _shape(self, region: Region, block: OperatorBlock) -> Known:
        graph = region.graph
        made = {t for i in block.members for t in graph.operators[i].outputs}
        if block.kind != CLUSTER:
            made = set[int]()
        index: dict[Local, int] = {}
        members: list[Member] = []
        signature: list[object] = [block.classes]
        outer: set[int] = set()
        for i in block.members:
            op = graph.operators[i]
            ids: list[int] = []
            for k, t in enumerate(op.inputs):
                local = (t, OWN_GROUP if t in made else region.groups[i, k])
                known = index.setdefault(local, len(index))
                ids.append(known)
                if t not in made and not graph.tensors[t].generated:
                    outer.add(known)
            outs = tuple(index.setdefault((t, OWN_GROUP), len(index)) for t in op.outputs)
            members.append(Member(op=op, inputs=tuple(ids), outputs=outs))
            number = self._op_id(op, tuple(graph.tensors[t] for t in (*op.inputs, *op.outputs)))
            signature.append((number, tuple(ids), outs))
        inside = set(block.members)
        visible: set[int] = set()
        for i in block.members:
            for t in graph.operators[i].outputs:
                if any(u not in inside for u in region.users[t]):
                    visible.add(index[t, OWN_GROUP])
        fused = frozenset(x for (t, _), x in index.items() if t in region.blocks.fused)
        shape = BlockShape(
            block=block,
            members=tuple(members),
            locals=tuple(graph.tensors[t] for t, _ in index),
            outer=frozenset(outer),
            visible=frozenset(visible),
            fused=fused,
        )
        key = (tuple(signature), *(tuple(sorted(part)) for part in (visible, outer, fused)))
        return shape, tuple(index), self._shape_ids.setdefault(key, len(self._shape_ids))
