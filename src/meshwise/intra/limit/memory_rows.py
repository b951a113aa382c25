"""Memory of a network at one time as a row: bytes of nodes and of pairs of nodes.

A row is what `memory.peak` counts at its highest point, written as a function of the choices.  A
copy is live when its choice differs from the layout that it is made from, hence depends on a pair.
What is not pairwise (two far users that share one final layout) is counted at the users only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.assignment.problem import Array, Row, Sums
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.intra.blocks.partition import BODIES, CLUSTER
from meshwise.intra.network import BLOCK, Edge, LayoutNetwork
from meshwise.intra.regions import END, OWN_GROUP, Region
from meshwise.intra.shapes import local_bytes
from meshwise.memory.liveness import Liveness, liveness
from meshwise.memory.peak import Buffer


@dataclass(frozen=True, slots=True)
class _Term:
    """Bytes of a node (v = -1) or a pair during [start, end] of its region.

    Attributes:
        start: The first time.
        end: The last time.
        u: The node.
        v: The other node, -1 if there is none.
        weights: Bytes by choice.
        tensor: Whose bytes they are.
        is_copy: Whether they are of a copy in another layout.
    """

    start: int
    end: int
    u: int
    v: int
    weights: Array
    tensor: int
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class _Later:
    """Terms of a tensor; written when it is asked for."""

    tensor: int
    write: Callable[[], None]


class MemoryRows:
    """Writes rows for one network."""

    def __init__(self, network: LayoutNetwork) -> None:
        self.network = network
        self.sizes = network.mesh.sizes
        self.live: list[Liveness] = [liveness(r.graph) for r in network.regions]
        self.inner = {r.path: r for r in network.regions}
        self.terms: list[list[_Term]] = [[] for _ in network.regions]
        self.later: list[list[_Later]] = [[] for _ in network.regions]
        self.names: dict[tuple[int, int], list[int]] = {}
        self.apart = network.inputs_apart
        self._positions()
        self._inputs()
        for region in network.regions:
            self._values(region)
            self._moves(region)
            self._scratch(region)
        for edge in network.edges:
            self._edge(edge)

    def _edge(self, edge: Edge) -> None:
        """Note the terms of an edge, if its tensor is used at all."""
        r, t = edge.place
        if self.times.get((r, t, edge.group)):
            self.later[r].append(_Later(t, functools.partial(self._copy, edge)))

    def _add(self, region: int, term: _Term) -> None:
        """Note bytes of a tensor of a region."""
        if term.weights.any():
            self.terms[region].append(term)

    def _add_copy(self, edge: Edge, start: int, end: int, weights: Array) -> None:
        """Note bytes of a copy that an edge makes."""
        region, tensor = edge.place
        copy = _Term(start, end, edge.source, edge.target, weights, tensor, is_copy=True)
        self._add(region, copy)

    def _positions(self) -> None:
        """For each (region, tensor, group) the times of its uses, and the node of each use."""
        self.times: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for region in self.network.regions:
            for i, op in enumerate(region.graph.operators):
                block = region.blocks.block_of[i]
                for k, t in enumerate(op.inputs):
                    if block < 0:
                        continue
                    if op.bodies:
                        node = self.network.boundaries[region.index, i, k]
                    else:
                        node = self.network.block_nodes[region.index, block]
                    place = (region.index, t, region.groups[i, k])
                    self.times.setdefault(place, []).append((i, node))
            for j, t in enumerate(region.graph.outputs):
                place = (region.index, t, region.groups[END, j])
                self.times.setdefault(place, []).append((len(region.graph.operators), -1))

    def _inputs(self) -> None:
        graph, end = self.network.graph, len(self.network.graph.operators)
        for t in dict.fromkeys(graph.inputs):
            node = self.network.maker[0, t]
            layouts = self.network.nodes[node].layouts
            weights = np.array(
                [local_bytes(graph.tensors[t], w, self.sizes) for w in layouts], dtype=np.float64
            )
            if t in self.apart:
                times = [i for i, op in enumerate(graph.operators) if t in op.inputs]
                here = _Term(times[0], times[-1], node, -1, weights, t, is_copy=True)
                self._add(0, here)
            else:
                self._add(0, _Term(-1, end, node, -1, weights, t))

    def _values(self, region: Region) -> None:
        graph, live = region.graph, self.live[region.index]
        donated = (
            {
                graph.outputs[j]: self.network.maker[0, graph.inputs[i]]
                for i, j in graph.aliases
                if graph.inputs[i] not in self.apart
            }
            if region.index == 0
            else {}
        )
        for i, op in enumerate(graph.operators):
            number = region.blocks.block_of[i]
            if number < 0:
                continue
            for place, t in enumerate(op.outputs):
                if t in live.fused or live.root[t] != t:
                    continue
                write = functools.partial(self._value, region, number, i, place, donated.get(t))
                self.later[region.index].append(_Later(t, write))

    def _value(self, region: Region, number: int, i: int, place: int, donated: int | None) -> None:
        """Bytes of one result of an operator."""
        t = region.graph.operators[i].outputs[place]
        live = self.live[region.index]
        layouts, node = self._made(region, number, i, place)
        weights = np.array(
            [local_bytes(region.graph.tensors[t], w, self.sizes) for w in layouts],
            dtype=np.float64,
        )
        if donated is None:
            self._add(region.index, _Term(live.start[t], live.end[t], node, -1, weights, t))
            return
        # The buffer of donated state is free if the new state is made in its layout.
        wanted = self.network.nodes[donated].layouts
        table = np.array(
            [[0.0 if w == g else x for g in wanted] for w, x in zip(layouts, weights, strict=True)]
        )
        self._add(region.index, _Term(live.start[t], live.end[t], node, donated, table, t))

    def _made(self, region: Region, number: int, i: int, place: int) -> tuple[list[Layout], int]:
        """Layouts in which result `place` of operator `i` is made, per choice of its node."""
        op = region.graph.operators[i]
        block = region.blocks.blocks[number]
        if block.kind == BODIES:
            structure = op.structure
            assert structure is not None
            carry = structure.carry_of(place)
            k = len(op.inputs) + place if carry is None else carry
            node = self.network.boundaries[region.index, i, k]
            layouts = self.network.nodes[node].layouts
            if place in structure.stacked_results:
                layouts = tuple(Layout(((), *w.dims), w.partial, w.monoid) for w in layouts)
            return list(layouts), node
        node = self.network.block_nodes[region.index, number]
        table = self.network.nodes[node].table
        assert table is not None
        member = block.members.index(i)
        return [ways[member][1][place] for ways in table.ways], node

    def _moves(self, region: Region) -> None:
        """Copies inside of clusters."""
        for number, block in enumerate(region.blocks.blocks):
            if block.kind != CLUSTER:
                continue
            node = self.network.block_nodes[region.index, number]
            table = self.network.nodes[node].table
            assert table is not None
            if not any(table.moves):
                continue
            names = self._locals(region, block.members)
            for choice, moves in enumerate(table.moves):
                for x, _, target in moves:
                    t = names[x]
                    tensor = region.graph.tensors[t]
                    inside = [
                        time
                        for time, user in self.times.get((region.index, t, OWN_GROUP), [])
                        if user == node
                    ]
                    if not inside:
                        continue
                    weights = np.zeros(len(table.moves))
                    weights[choice] = local_bytes(tensor, target, self.sizes)
                    copy = _Term(inside[0], inside[0], node, -1, weights, t, is_copy=True)
                    self._add(region.index, copy)

    def _scratch(self, region: Region) -> None:
        """What operators hold while they run."""
        for number, block in enumerate(region.blocks.blocks):
            i = block.members[0]
            op = region.graph.operators[i]
            if block.kind in (CLUSTER, BODIES) or op.scratch is None:
                continue
            node = self.network.block_nodes[region.index, number]
            held = self.network.scratch_bytes(region, number)
            root = self.live[region.index].root[op.outputs[0]]
            self._add(region.index, _Term(i, i, node, -1, held, root, is_copy=True))

    def _locals(self, region: Region, members: Sequence[int]) -> list[int]:
        """Tensors of a cluster in the order of its table."""
        key = (region.index, members[0])
        if key not in self.names:
            self.names[key] = self._ordered(region, members)
        return self.names[key]

    def _ordered(self, region: Region, members: Sequence[int]) -> list[int]:
        made = {t for i in members for t in region.graph.operators[i].outputs}
        index: dict[tuple[int, int], None] = {}
        for i in members:
            op = region.graph.operators[i]
            for k, t in enumerate(op.inputs):
                index[t, OWN_GROUP if t in made else region.groups[i, k]] = None
            for t in op.outputs:
                index[t, OWN_GROUP] = None
        return [t for t, _ in index]

    def _copy(self, edge: Edge) -> None:
        """Bytes of what an edge makes: a shared copy, or the final layout at its user."""
        r, t = edge.place
        graph = self.network.regions[r].graph
        tensor = graph.tensors[t]
        source, target = self.network.nodes[edge.source], self.network.nodes[edge.target]
        if source.kind == BLOCK:
            left = self._left(edge)
        else:
            left = self._outside(edge.source, edge.place)
        times = self.times.get((r, t, edge.group), [])
        if self.network.copies.get((r, t, edge.group)) == edge.target:
            weights = self._difference(tensor, left, [(w,) for w in target.layouts])
            last = times[-1][0]
            if last < len(graph.operators):
                live = self.live[r]
                for u in graph.operators[last].outputs:
                    if live.root[u] != u and t in graph.operators[last].inputs:
                        last = max(last, live.last_use_of[u])
            self._add_copy(edge, times[0][0], last, weights)
            return
        if target.kind == BLOCK:
            self._user(edge, left)
            return
        if edge.source == edge.target:
            return
        if target.kind == "boundary" and any(node == edge.target for _, node in times):
            layouts = self._outside(edge.target, edge.place)
            weights = self._difference(tensor, left, [(w,) for w in layouts])
            for time in dict.fromkeys(i for i, node in times if node == edge.target):
                self._add_copy(edge, time, time, weights)
            return
        if r == 0 and t in {graph.outputs[j] for _, j in graph.aliases} and target.kind == "input":
            return
        weights = self._difference(tensor, left, [(w,) for w in target.layouts])
        end = len(graph.operators)
        self._add_copy(edge, end, end, weights)

    def _left(self, edge: Edge) -> list[Layout]:
        """Layouts in which users outside of its block find a tensor."""
        r, t = edge.place
        region = self.network.regions[r]
        table = self.network.nodes[edge.source].table
        assert table is not None
        number = self.network.nodes[edge.source].ref[1]
        block = region.blocks.blocks[number]
        if block.kind == CLUSTER:
            return list(table.leaves[self._locals(region, block.members).index(t)])
        i = block.members[0]
        return self._made(region, number, i, region.graph.operators[i].outputs.index(t))[0]

    def _outside(self, node: int, place: tuple[int, int]) -> list[Layout]:
        """Layouts of a boundary, input, copy or result node as seen from the region of a tensor."""
        info = self.network.nodes[node]
        if info.kind != "boundary":
            return list(info.layouts)
        rank = len(self.network.regions[place[0]].graph.tensors[place[1]].shape)
        return [
            w if len(w.dims) == rank else Layout(((), *w.dims), w.partial, w.monoid)
            for w in info.layouts
        ]

    def _user(self, edge: Edge, left: list[Layout]) -> None:
        """Final layouts that one block wants: from its first to its last use of each."""
        r, t = edge.place
        region = self.network.regions[r]
        tensor = region.graph.tensors[t]
        target = self.network.nodes[edge.target]
        table = target.table
        assert table is not None
        members = region.blocks.blocks[target.ref[1]].members
        slots: list[tuple[int, int, int]] = []
        for place, i in enumerate(members):
            for k, u in enumerate(region.graph.operators[i].inputs):
                if u == t and region.groups[i, k] == edge.group:
                    slots.append((place, i, k))
        spans: dict[tuple[int, int], Array] = {}
        for choice, ways in enumerate(table.ways):
            seen: dict[Layout, tuple[int, int]] = {}
            for place, i, k in slots:
                wanted = ways[place][0][k]
                first, _ = seen.get(wanted, (i, i))
                seen[wanted] = (first, i)
            for layout, (first, last) in seen.items():
                size = local_bytes(tensor, layout, self.sizes)
                weights = spans.setdefault(
                    (first, last), np.zeros((len(left), len(table.strategies)))
                )
                for row, have in enumerate(left):
                    if have != layout:
                        weights[row, choice] += size
        for (first, last), weights in spans.items():
            self._add_copy(edge, first, last, weights)

    def _difference(
        self, tensor: Tensor, left: Sequence[Layout], wants: Sequence[tuple[Layout, ...]]
    ) -> Array:
        """Bytes of the layouts that are wanted and not there."""
        size = {w: float(local_bytes(tensor, w, self.sizes)) for want in wants for w in want}
        return np.array(
            [[sum(size[w] for w in want if w != have) for want in wants] for have in left]
        )

    def row_of(self, buffers: Sequence[Buffer]) -> Row:
        """The row of what is live together, in whatever order it was made, without a limit.

        Args:
            buffers: What is live under one choice.  Under another one the values and copies of
                the same tensors count, and all inputs; a copy is one that is made while the
                buffer's tensor is used.
        """
        live: dict[int, dict[tuple[int, bool], list[int]]] = {}
        for b in buffers:
            region = self.inner[b.path]
            t = self.live[region.index].root[b.tensor]
            of_region = live.setdefault(region.index, {})
            of_region.setdefault((t, b.role == "copy"), []).append(b.start)
        sums = Sums()
        for r, here in sorted(live.items()):
            self._write(r, {t for t, _ in here})
            for term in self.terms[r]:
                starts = here.get((term.tensor, term.is_copy))
                is_input = r == 0 and term.start < 0 and term.v < 0
                if is_input or (
                    starts is not None
                    and (not term.is_copy or any(term.start <= s <= term.end for s in starts))
                ):
                    if term.v < 0:
                        sums.add(term.u, term.weights)
                    else:
                        sums.add_pair(term.u, term.v, term.weights)
        name = f"bytes of {sorted((r, *key) for r, here in live.items() for key in here)}"
        return sums.row(math.inf, name)

    def _write(self, region: int, tensors: Collection[int]) -> None:
        """Write the terms of a region's tensors that are not yet written."""
        waiting = self.later[region]
        self.later[region] = [item for item in waiting if item.tensor not in tensors]
        for item in waiting:
            if item.tensor in tensors:
                item.write()
