"""Bytes that a micro-batch in flight holds, as a function of the choices of a piece's network.

What `PieceRoles.kept` finds of a plan, written over nodes and pairs of nodes.  A value that the
backward pass has of the forward pass is kept

- as it was made, if the backward pass reads it so, or makes its own copy of it;
- as the copy in another layout that the forward pass made, if both read that one.

Of a value that is computed again (`Kept.again`) such a copy is kept too, unless it is a part of
what the backward pass then has.  Where several copies of one value are shared, the sum may count
the value as it was made although nobody reads it so; else it is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from meshwise.graph.layout import Layout
from meshwise.intra.network import LayoutNetwork
from meshwise.intra.regions import END, Region
from meshwise.intra.shapes import Ways, local_bytes
from meshwise.kernels.arrays import Floats
from meshwise.pieces.phases import backward_operators
from meshwise.pieces.piece import PieceGraph


class BodyBytes:
    """Bytes of tensors of a piece's loop body, by choice."""

    def __init__(self, piece: PieceGraph, network: LayoutNetwork) -> None:
        self._piece, self._network = piece, network
        self._region: Region = next(r for r in network.regions if r.path == (piece.loop, 0))
        self._body = self._region.graph
        self._maker = {
            t: (i, n) for i, op in enumerate(self._body.operators) for n, t in enumerate(op.outputs)
        }
        self._backward = backward_operators(piece)
        # Where the backward pass reads a tensor: operator, operand.
        self._reads: dict[int, list[tuple[int, int]]] = {}
        for i in self._backward:
            for k, t in enumerate(self._body.operators[i].inputs):
                self._reads.setdefault(t, []).append((i, k))
        self._entering = self._entering_nodes()
        self._known: dict[int, list[Ways]] = {}

    def _entering_nodes(self) -> dict[int, int]:
        """For each tensor that came over a cut the node that decides how it lies."""
        graph, number = self._piece.graph, self._piece.loop
        loop = graph.operators[number]
        assert loop.structure is not None
        crossing = {graph.inputs[c.value] for c in self._piece.entering}
        pairs = zip(loop.structure.parts[0].operands, self._body.inputs, strict=True)
        boundaries = self._network.boundaries
        return {t: boundaries[0, number, k] for k, t in pairs if loop.inputs[k] in crossing}

    def made(self, tensors: Iterable[int]) -> Iterator[tuple[int, Floats]]:
        """Nodes, and bytes of each choice, of tensors as they are made or enter."""
        for t in tensors:
            node, layouts = self._made(t)
            if node >= 0:
                yield node, self._bytes(t, layouts)

    def kept(self) -> Iterator[tuple[int, int, Floats]]:
        """What the backward pass has: (node, -1, bytes) or (node, node, bytes by pair)."""
        leaving = self._leaving()
        others = set(range(len(self._body.outputs))) - leaving
        ahead = self._groups(self._piece.forward, leaving)
        back = self._groups(self._backward, others)
        border = frozenset(self._piece.border.tensors)
        again = {t for i in self._piece.border.again for t in self._body.operators[i].outputs}
        for t in sorted(border | again):
            node, layouts = self._made(t)
            if node < 0:
                continue
            groups = back.get(t, set())
            both = sorted(groups & ahead.get(t, set()))
            shared = {g: self._network.copies.get((self._region.index, t, g), -1) for g in both}
            copies = [copy for copy in shared.values() if copy >= 0]
            if t in border and len(copies) == len(groups) == 1:
                yield copies[0], -1, self._bytes(t, self._network.nodes[copies[0]].layouts)
            else:
                if t in border:
                    yield node, -1, self._bytes(t, layouts)
                else:
                    reduced = self._reduced(t, node)
                    yield node, -1, np.where(reduced, self._bytes(t, layouts), 0.0)
                for copy in copies:
                    yield node, copy, self._copied(t, layouts, copy, is_made_again=t in again)
            for group, copy in shared.items():
                if copy >= 0:
                    yield from self._larger(t, group, copy, self._network.nodes[copy].layouts)
                else:
                    yield from self._larger(t, group, node, layouts)

    def _larger(
        self, t: int, group: int, giver: int, layouts: Iterable[Layout]
    ) -> Iterator[tuple[int, int, Floats]]:
        """What is held beyond a value or copy where the backward pass wants more of it."""
        there = self._bytes(t, layouts)
        wanted: dict[int, Floats] = {}
        for i, k in self._reads.get(t, []):
            number = self._region.blocks.block_of[i]
            if number < 0 or self._region.groups[i, k] != group:
                continue
            if self._body.operators[i].bodies:
                continue
            node = self._network.block_nodes[self._region.index, number]
            num_bytes = self._bytes(t, [ways[0][k] for ways in self._layouts(i)])
            wanted[node] = np.maximum(wanted.get(node, 0.0), num_bytes)
        for node, num_bytes in wanted.items():
            more = np.maximum(0.0, num_bytes[None, :] - there[:, None])
            if node != giver and more.any():
                yield giver, node, more

    def _reduced(self, t: int, node: int) -> NDArray[np.bool_]:
        """For each choice, whether the block that makes a partial sum reduces it for its users."""
        i, place = self._maker.get(t, (-1, 0))
        found = np.zeros(len(self._network.nodes[node].cost_s), np.bool_)
        if i < 0:
            return found
        number = self._region.blocks.block_of[i]
        for c, ways in enumerate(self._layouts(i)):
            found[c] = bool(ways[1][place].partial)
        if not found.any():
            return found
        for u in self._region.users[t]:
            if u != END and self._region.blocks.block_of[u] == number:
                places = [k for k, x in enumerate(self._body.operators[u].inputs) if x == t]
                whole = [any(not w[0][k].partial for k in places) for w in self._layouts(u)]
                if any(whole):
                    return found & np.array(whole)
        return np.zeros_like(found)

    def _copied(self, t: int, layouts: list[Layout], copy: int, *, is_made_again: bool) -> Floats:
        """Bytes of a copy beside the value, for each pair of their layouts."""
        wanted = self._network.nodes[copy].layouts
        num_bytes = self._bytes(t, wanted)
        known: dict[Layout, Floats] = {}
        for made in layouts:
            if made not in known:
                there = [made == w or (is_made_again and _is_part(w, made)) for w in wanted]
                known[made] = np.where(there, 0.0, num_bytes)
        return np.array([known[made] for made in layouts])

    def _groups(self, operators: Iterable[int], results: Iterable[int]) -> dict[int, set[int]]:
        """For each tensor the groups in which operators read it, or it is one of some results."""
        found: dict[int, set[int]] = {}
        for i in operators:
            for k, t in enumerate(self._body.operators[i].inputs):
                found.setdefault(t, set()).add(self._region.groups[i, k])
        for n in results:
            found.setdefault(self._body.outputs[n], set()).add(self._region.groups[END, n])
        return found

    def _leaving(self) -> set[int]:
        """Positions of the body's results that go over a cut."""
        graph = self._piece.graph
        loop = graph.operators[self._piece.loop]
        assert loop.structure is not None
        over = {graph.outputs[c.value] for c in self._piece.leaving}
        results = loop.structure.parts[0].results
        return {n for n, j in enumerate(results) if j >= 0 and loop.outputs[j] in over}

    def _bytes(self, t: int, layouts: Iterable[Layout]) -> Floats:
        sizes = self._network.mesh.sizes
        return np.array([local_bytes(self._body.tensors[t], w, sizes) for w in layouts], np.float64)

    def _made(self, t: int) -> tuple[int, list[Layout]]:
        """The node that decides how a tensor is made, and its layout by choice; -1 for none."""
        if t in self._entering:
            node = self._entering[t]
            return node, list(self._network.nodes[node].layouts)
        i, place = self._maker.get(t, (-1, 0))
        if i < 0 or self._body.tensors[t].generated or self._body.operators[i].bodies:
            return -1, []
        number = self._region.blocks.block_of[i]
        if number < 0:
            return -1, []
        node = self._network.block_nodes[self._region.index, number]
        return node, [results[place] for _, results in self._layouts(i)]

    def _layouts(self, i: int) -> list[Ways]:
        """Layouts of operands and results of an operator for each choice of its block."""
        if i not in self._known:
            number = self._region.blocks.block_of[i]
            table = self._network.nodes[self._network.block_nodes[self._region.index, number]].table
            assert table is not None
            member = self._region.blocks.blocks[number].members.index(i)
            self._known[i] = [ways[member] for ways in table.ways]
        return self._known[i]


def _is_part(layout: Layout, of: Layout) -> bool:
    """Whether tiles of one layout are parts of those of another on the same device."""
    pairs = zip(layout.dims, of.dims, strict=True)
    return not of.partial and all(a[: len(b)] == b for a, b in pairs)
