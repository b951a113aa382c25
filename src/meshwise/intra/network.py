"""From regions to a network: nodes with choices, joined by the tensors that they exchange.

Nodes are graph inputs, blocks, the boundaries of bodies, shared copies of tensors, and results.
A node's choice fixes the layout in which it leaves each tensor that it makes and the layouts in
which it wants each tensor that it uses; resharding between the two is the cost of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout, replicated, shift_in, used_axes
from meshwise.graph.loops import Strategy
from meshwise.graph.structure import PREDICATE
from meshwise.intra.blocks.partition import BODIES, CLUSTER
from meshwise.intra.boundaries import entering, leaving
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.evaluators import Evaluators, resharding_s
from meshwise.intra.options import AllowedChoices, IntraOptions
from meshwise.intra.regions import END, Region, regions
from meshwise.intra.shapes import Table, local_bytes
from meshwise.intra.tables import Evaluator
from meshwise.memory.scratch import scratch_bytes
from meshwise.memory.targets import memory_model_of
from meshwise.plan.offload import crossing_s, offloadable

# A tensor of a region: (region, tensor id).
Place = tuple[int, int]
# Sorts a copy after everything of the operator before its first user.
_LATE = 1 << 30

INPUT, BLOCK, BOUNDARY, COPY, RESULT = "input", "block", "boundary", "copy", "result"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNode:
    """One decision.

    Attributes:
        kind: `input`, `block`, `boundary`, `copy` or `result`.
        ref: input: (position,); block: (region, block); boundary: (region, operator, position);
            copy: (region, tensor, group); result: (position,).
        cost_s: Seconds of each choice in one step.
        layouts: Layouts to choose from; empty for a block.
        table: For a block.
        key: Nodes of equal key have equal choices and costs.
        position: Where it stands in the program, for display and greedy methods.
    """

    kind: str
    ref: tuple[int, ...]
    cost_s: NDArray[np.float64]
    layouts: tuple[Layout, ...] = ()
    table: Table | None = None
    key: int = -1
    position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Resharding of one tensor between two nodes.

    Attributes:
        source: Node that leaves the tensor.
        target: Node that wants it.
        cost_s: Seconds in one step, shape (choices of source, choices of target).
        place: The tensor.
        group: Copy group.
        key: Edges of equal key have the same matrix.
    """

    source: int
    target: int
    cost_s: NDArray[np.float64]
    place: Place
    group: int
    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNetwork:
    """All decisions about one graph on one mesh."""

    graph: Graph
    mesh: LogicalMesh
    regions: tuple[Region, ...]
    nodes: tuple[LayoutNode, ...]
    edges: tuple[Edge, ...]
    block_nodes: dict[tuple[int, int], int]
    maker: dict[Place, int]
    copies: dict[tuple[int, int, int], int]
    boundaries: dict[tuple[int, int, int], int]
    results: dict[int, int]
    in_host: tuple[int, ...] = ()

    @property
    def inputs_apart(self) -> frozenset[int]:
        """The inputs that take no memory of a device between their uses."""
        if not (self.in_host and memory_model_of(self.mesh.device).has_host_memory):
            return frozenset()
        return frozenset(self.graph.inputs[i] for i in self.in_host)

    def scratch_bytes(self, region: Region, number: int) -> NDArray[np.float64]:
        """Bytes that the only operator of a block holds for itself, by choice of its node."""
        (i,) = region.blocks.blocks[number].members
        table = self.nodes[self.block_nodes[region.index, number]].table
        assert table is not None
        op, tensors = region.graph.operators[i], region.graph.tensors
        found = [scratch_bytes(op, way, self.mesh.sizes, tensors) for (way,) in table.strategies]
        return np.array(found, dtype=np.float64)


@dataclass(slots=True)
class _Source:
    node: int
    layouts: tuple[Layout, ...]


@dataclass(slots=True)
class _Use:
    node: int
    wants: tuple[tuple[Layout, ...], ...]
    times: int = 1


@dataclass(slots=True)
class _Builder:
    graph: Graph
    mesh: LogicalMesh
    options: IntraOptions
    evaluators: tuple[Evaluator, Evaluator]  # outside of loops, and in their bodies
    regions: tuple[Region, ...]
    in_host: tuple[int, ...]
    nodes: list[LayoutNode] = field(default_factory=list[LayoutNode])
    edges: list[Edge] = field(default_factory=list[Edge])
    sources: dict[Place, _Source] = field(default_factory=dict[Place, _Source])
    uses: dict[tuple[int, int, int], list[_Use]] = field(
        default_factory=dict[tuple[int, int, int], list[_Use]]
    )
    block_nodes: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    copies: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])
    boundaries: dict[tuple[int, int, int], int] = field(
        default_factory=dict[tuple[int, int, int], int]
    )
    results: dict[int, int] = field(default_factory=dict[int, int])
    keys: dict[object, int] = field(default_factory=dict[object, int])

    def key(self, value: object) -> int:
        return self.keys.setdefault(value, len(self.keys))

    def add(self, node: LayoutNode) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def use(self, region: int, tensor: int, group: int, use: _Use) -> None:
        self.uses.setdefault((region, tensor, group), []).append(use)

    def layout_node(
        self,
        kind: str,
        ref: tuple[int, ...],
        layouts: tuple[Layout, ...],
        extra: object,
        position: tuple[int, ...],
    ) -> int:
        return self.add(
            LayoutNode(
                kind=kind,
                ref=ref,
                cost_s=np.zeros(len(layouts)),
                layouts=layouts,
                key=self.key((kind, layouts, extra)),
                position=position,
            )
        )

    # -- nodes --------------------------------------------------------------------------------

    def inputs(self) -> None:
        pins, asked = self.options.restriction.pins, self.options.layouts
        axes_of = self.options.restriction.input_axes
        for i, t in enumerate(self.graph.inputs):
            tensor = self.graph.tensors[t]
            layouts = whole_layouts(tensor.shape, self.mesh.sizes)
            if i in axes_of:
                layouts = tuple(w for w in layouts if axes_of[i].issuperset(used_axes(w)))
            layouts = self.options.restriction.layouts.get(i, layouts)
            if i in pins:
                layouts = (pins[i],)
            if i in asked:
                layouts = tuple(w for w in layouts if w in asked[i]) or asked[i]
            extra = (tensor.shape, tensor.dtype, i in self.in_host)
            node = self.layout_node(INPUT, (i,), layouts, extra, (-1, i))
            if i in self.in_host:
                held = [local_bytes(tensor, w, self.mesh.sizes) for w in layouts]
                crossing = [crossing_s(n, self.mesh.device) for n in held]
                self.nodes[node] = replace(self.nodes[node], cost_s=np.array(crossing))
            self.sources[0, t] = _Source(node, layouts)

    def blocks(self, region: Region) -> None:
        evaluator = self.evaluators[region.index > 0]
        for number, block in enumerate(region.blocks.blocks):
            if block.kind == BODIES:
                self.bodies(region, block.members[0])
                continue
            shape, local, known = evaluator.shapes.of_block(region, number)
            allowed: AllowedChoices | None = None
            only: frozenset[Strategy] | None = None
            if block.kind != CLUSTER:
                path = (*region.path, block.members[0])
                allowed = self.options.restriction.allowed.get(path)
                only = self.options.strategies.get(path)
            key = (known, allowed, only)
            if key not in evaluator.tables:
                evaluator.tables[key] = (
                    evaluator.cluster(shape)
                    if block.kind == CLUSTER
                    else evaluator.single(shape, allowed, only)
                )
            table = evaluator.tables[key]
            if not table.strategies:
                where = shape.members[0].op.where or shape.members[0].op.kind
                raise InfeasibleError(f"{where}: no strategy is left under the restrictions")
            node = self.add(
                LayoutNode(
                    kind=BLOCK,
                    ref=(region.index, number),
                    cost_s=table.cost_s * region.trips,
                    table=table,
                    key=self.key((evaluator.forbid, key, region.trips)),
                    position=(*region.path, block.members[0]),
                )
            )
            self.block_nodes[region.index, number] = node
            for x, wants in table.wants.items():
                t, group = local[x]
                times = 1 + ((number, t, group) in region.repeated)
                self.use(region.index, t, group, _Use(node, wants, times))
            for x, layouts in table.leaves.items():
                t = local[x][0]
                self.sources[region.index, t] = _Source(node, layouts)

    def bodies(self, region: Region, i: int) -> None:
        """Boundaries of an operator with bodies: one node for each operand and other result."""
        op, outside = region.graph.operators[i], region.index
        structure = op.structure
        assert structure is not None
        inner = [r for r in self.regions if r.path[:-1] == (*region.path, i)]
        for k, t in enumerate(op.inputs):
            j = structure.carried_result(k)
            layouts = entering(region, op, k, inner, self.mesh.sizes)
            stacked, tensor = k in structure.stacked_operands, region.graph.tensors[t]
            extra = (tensor.shape[stacked:], tensor.dtype, stacked, j is not None)
            node = self.boundary(region, i, k, layouts, extra)
            for p, n in structure.takers(k):
                within = op.bodies[p].inputs[n]
                if not op.bodies[p].tensors[within].generated or j is not None:
                    self.sources[inner[p].index, within] = _Source(node, layouts)
            outer = tuple(shift_in(w) for w in layouts) if stacked else layouts
            if not tensor.generated:
                self.use(outside, t, region.groups[i, k], _Use(node, tuple((w,) for w in outer)))
            if j is not None:
                self.sources[outside, op.outputs[j]] = _Source(node, layouts)
                for p, n in structure.makers(j):
                    self.body_result(inner[p], n, node, layouts)
        for j, t in enumerate(op.outputs):
            if structure.carry_of(j) is not None:
                continue
            layouts = leaving(structure, j, inner, self.mesh.sizes)
            stacked, tensor = j in structure.stacked_results, region.graph.tensors[t]
            extra = (tensor.shape[stacked:], tensor.dtype, "result")
            node = self.boundary(region, i, len(op.inputs) + j, layouts, extra)
            outer = tuple(shift_in(w) for w in layouts) if stacked else layouts
            self.sources[outside, t] = _Source(node, outer)
            for p, n in structure.makers(j):
                self.body_result(inner[p], n, node, layouts)
        for p, n in structure.makers(PREDICATE):
            whole = (replicated(0),)
            node = self.boundary(region, i, len(op.inputs) + len(op.outputs), whole, "predicate")
            self.body_result(inner[p], n, node, whole)

    def boundary(
        self, region: Region, i: int, k: int, layouts: tuple[Layout, ...], extra: object
    ) -> int:
        ref, position = (region.index, i, k), (*region.path, i, -1, k)
        node = self.boundaries[ref] = self.layout_node(BOUNDARY, ref, layouts, extra, position)
        return node

    def body_result(self, inner: Region, j: int, node: int, layouts: tuple[Layout, ...]) -> None:
        t = inner.graph.outputs[j]
        if not inner.graph.tensors[t].generated:
            group = inner.groups[END, j]
            self.use(inner.index, t, group, _Use(node, tuple((w,) for w in layouts)))

    def outputs(self) -> None:
        aliased = {j: i for i, j in self.graph.aliases}
        for j, t in enumerate(self.graph.outputs):
            tensor = self.graph.tensors[t]
            if j in aliased:
                source = self.sources[0, self.graph.inputs[aliased[j]]]
                node, layouts = source.node, source.layouts
            elif tensor.generated:
                continue
            else:
                layouts = whole_layouts(tensor.shape, self.mesh.sizes)
                extra = (tensor.shape, tensor.dtype)
                end = len(self.graph.operators)
                node = self.layout_node(RESULT, (j,), layouts, extra, (end, j))
                self.results[j] = node
            if not tensor.generated:
                wants = tuple((w,) for w in layouts)
                self.use(0, t, self.regions[0].groups[END, j], _Use(node, wants))

    # -- edges --------------------------------------------------------------------------------

    def connect(self) -> None:
        for (r, t, group), uses in self.uses.items():
            source = self.sources.get((r, t))
            if source is None:
                continue
            tensor, trips = self.regions[r].graph.tensors[t], self.regions[r].trips
            evaluator = self.evaluators[r > 0]
            node, left = source.node, source.layouts
            if len(uses) > 1:
                wanted = (w for use in uses for want in use.wants for w in want)
                layouts = tuple(dict.fromkeys((*left, *wanted)))
                extra = (tensor.shape, tensor.dtype, trips)
                place = self.nodes[uses[0].node].position
                before = (*place[:-1], place[-1] - 1, _LATE)
                copy = self.layout_node(COPY, (r, t, group), layouts, extra, before)
                self.copies[r, t, group] = copy
                wants = tuple((w,) for w in layouts)
                times = trips * max(use.times for use in uses)
                cost, key = resharding_s(evaluator, tensor, times, left, wants)
                self.edge(node, copy, cost, (r, t), group, self.key(key))
                node, left = copy, layouts
            for use in uses:
                times = trips * use.times
                cost, key = resharding_s(evaluator, tensor, times, left, use.wants)
                self.edge(node, use.node, cost, (r, t), group, self.key(key))

    def edge(
        self,
        source: int,
        target: int,
        cost: NDArray[np.float64],
        place: Place,
        group: int,
        key: int,
    ) -> None:
        self.edges.append(
            Edge(source=source, target=target, cost_s=cost, place=place, group=group, key=key)
        )


def build_network(
    graph: Graph,
    mesh: LogicalMesh,
    options: IntraOptions,
    parts: tuple[Region, ...] | None = None,
    evaluators: Evaluators | None = None,
) -> LayoutNetwork:
    """All decisions about a graph on a mesh.

    Args:
        graph: The graph.
        mesh: The mesh.
        options: Of planning.
        parts: The regions of the graph if they are known.
        evaluators: That know what was computed for other graphs.

    Raises:
        InfeasibleError: the restrictions leave an operator no strategy.
    """
    forbid = options.restriction.forbid
    evaluators = evaluators or Evaluators()
    outside = inside = evaluators.of(mesh, options.objective, forbid)
    if options.restriction.forbid_inside - forbid:
        forbid = forbid | options.restriction.forbid_inside
        inside = evaluators.of(mesh, options.objective, forbid)
    in_host = offloadable(graph) if options.offload else ()
    builder = _Builder(graph, mesh, options, (outside, inside), parts or regions(graph), in_host)
    builder.inputs()
    for region in builder.regions:
        builder.blocks(region)
    builder.outputs()
    builder.connect()
    return LayoutNetwork(
        graph=graph,
        mesh=mesh,
        regions=builder.regions,
        nodes=tuple(builder.nodes),
        edges=tuple(builder.edges),
        block_nodes=builder.block_nodes,
        maker={place: source.node for place, source in builder.sources.items()},
        copies=builder.copies,
        boundaries=builder.boundaries,
        results=builder.results,
        in_host=builder.in_host,
    )
