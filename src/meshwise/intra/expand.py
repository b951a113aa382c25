"""From a choice per node to the decision about every operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwise.errors import SolverError
from meshwise.graph.follow import strategy_for_result
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, replicated, shift_in
from meshwise.graph.loops import NONE, Strategy
from meshwise.graph.structure import PREDICATE
from meshwise.intra.blocks.partition import BODIES, CLUSTER
from meshwise.intra.network import LayoutNetwork
from meshwise.intra.regions import END, OWN_GROUP, Region
from meshwise.intra.shapes import Ways, strategy_layouts
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use


def free_use(layout: Layout) -> Use:
    """Use of a generated value: it is made in the layout that is wanted."""
    return Use(group=OWN_GROUP, via=layout, layout=layout)


class _Expander:
    def __init__(self, network: LayoutNetwork, choice: Sequence[int]) -> None:
        self.network = network
        self.choice = choice
        self.sizes = network.mesh.sizes
        self.inner = {r.path: r for r in network.regions}

    def node_layout(self, node: int) -> Layout:
        return self.network.nodes[node].layouts[self.choice[node]]

    def region(
        self, region: Region, inputs: tuple[Layout, ...], outputs: dict[int, Layout]
    ) -> GraphDecision:
        """Decision of one region.

        Args:
            region: The region.
            inputs: Layouts of its inputs.
            outputs: Wanted layouts by position among its results, as far as they are fixed.
        """
        graph = region.graph
        defined: dict[int, Layout] = dict(zip(graph.inputs, inputs, strict=True))
        strategies, layouts = self.of_blocks(region)
        for i, op in enumerate(graph.operators):
            if op.bodies and region.blocks.block_of[i] >= 0:
                layouts[i] = self.outer_layouts(region, i)
            if i in layouts:
                defined.update(zip(op.outputs, layouts[i][1], strict=True))
        shared = self.shared(region, defined, layouts)
        uses: dict[int, list[Use]] = {}
        wanted: dict[int, Layout] = {}
        for i, op in enumerate(graph.operators):
            if i in layouts:
                uses[i] = [
                    self.use(region, t, region.groups[i, k], w, defined, shared)
                    for k, (t, w) in enumerate(zip(op.inputs, layouts[i][0], strict=True))
                ]
                for t, w in zip(op.inputs, layouts[i][0], strict=True):
                    wanted.setdefault(t, w)
        results: list[Use] = []
        for j, t in enumerate(graph.outputs):
            layout = outputs.get(j, replicated(len(graph.tensors[t].shape)))
            results.append(self.use(region, t, region.groups[END, j], layout, defined, shared))
            wanted.setdefault(t, layout)
        self.generated(region, strategies, layouts, uses, wanted)
        operators = tuple(
            OperatorDecision(
                strategy=strategies.get(i, ()),
                uses=tuple(uses[i]),
                results=layouts[i][1],
                bodies=self.bodies(region, i),
            )
            for i in range(len(graph.operators))
        )
        return GraphDecision(inputs=inputs, operators=operators, outputs=tuple(results))

    def generated(
        self,
        region: Region,
        strategies: dict[int, Strategy],
        layouts: dict[int, Ways],
        uses: dict[int, list[Use]],
        wanted: dict[int, Layout],
    ) -> None:
        """Decide the operators that make constants, last first, as their first users want them."""
        graph = region.graph
        for i in reversed(range(len(graph.operators))):
            if i not in layouts:
                op = graph.operators[i]
                strategies[i] = self.generate(op, wanted)
                found = strategy_layouts(op, strategies[i], self.sizes)
                if found is None:
                    raise SolverError(f"{op.kind} cannot run with the strategy {strategies[i]}")
                layouts[i] = found
                uses[i] = [free_use(w) for w in layouts[i][0]]
                for t, w in zip(op.inputs, layouts[i][0], strict=True):
                    wanted.setdefault(t, w)

    def shared(
        self,
        region: Region,
        defined: dict[int, Layout],
        layouts: dict[int, Ways],
    ) -> dict[int, Layout]:
        """Partial sums that their own cluster reduces: all users take the reduced copy."""
        graph = region.graph
        shared: dict[int, Layout] = {}
        for number, block in enumerate(region.blocks.blocks):
            if block.kind != CLUSTER:
                continue
            for t in {t for i in block.members for t in graph.operators[i].outputs}:
                if defined[t].partial and self.reduced(region, number, t, layouts):
                    shared[t] = Layout(defined[t].dims)
        return shared

    def of_blocks(self, region: Region) -> tuple[dict[int, Strategy], dict[int, Ways]]:
        """Return strategies and layouts of the operators that have a choice of strategies."""
        strategies: dict[int, Strategy] = {}
        layouts: dict[int, Ways] = {}
        for number, block in enumerate(region.blocks.blocks):
            if block.kind == BODIES:
                continue
            node = self.network.block_nodes[region.index, number]
            table, choice = self.network.nodes[node].table, self.choice[node]
            assert table is not None
            strategies.update(zip(block.members, table.strategies[choice], strict=True))
            layouts.update(zip(block.members, table.ways[choice], strict=True))
        return strategies, layouts

    def boundary_layouts(self, region: Region, i: int) -> Ways:
        """Layouts of the operands and results of an operator with bodies, inside of it."""
        op = region.graph.operators[i]
        structure = op.structure
        assert structure is not None
        at = self.network.boundaries
        count = len(op.inputs)
        operands = tuple(self.node_layout(at[region.index, i, k]) for k in range(count))
        carries = {j: operands[k] for k, j in structure.carries}
        results = tuple(
            carries[j] if j in carries else self.node_layout(at[region.index, i, count + j])
            for j in range(len(op.outputs))
        )
        return operands, results

    def outer_layouts(self, region: Region, i: int) -> Ways:
        """The same as seen from outside: with the dim that a scan slices or stacks."""
        structure = region.graph.operators[i].structure
        assert structure is not None
        operands, results = self.boundary_layouts(region, i)
        return (
            tuple(
                shift_in(w) if k in structure.stacked_operands else w
                for k, w in enumerate(operands)
            ),
            tuple(
                shift_in(w) if j in structure.stacked_results else w for j, w in enumerate(results)
            ),
        )

    def bodies(self, region: Region, i: int) -> tuple[GraphDecision, ...]:
        structure = region.graph.operators[i].structure
        if structure is None:
            return ()
        operands, results = self.boundary_layouts(region, i)
        return tuple(
            self.region(
                self.inner[(*region.path, i, p)],
                tuple(operands[k] for k in part.operands),
                {n: results[j] for n, j in enumerate(part.results) if j != PREDICATE},
            )
            for p, part in enumerate(structure.parts)
        )

    def reduced(
        self,
        region: Region,
        number: int,
        t: int,
        layouts: dict[int, Ways],
    ) -> bool:
        """Whether a member of the block that makes `t` wants it without partial terms."""
        for i in region.users[t]:
            if i != END and region.blocks.block_of[i] == number:
                op = region.graph.operators[i]
                for u, w in zip(op.inputs, layouts[i][0], strict=True):
                    if u == t and not w.partial:
                        return True
        return False

    def use(
        self,
        region: Region,
        t: int,
        group: int,
        layout: Layout,
        defined: dict[int, Layout],
        shared: dict[int, Layout],
    ) -> Use:
        if region.graph.tensors[t].generated:
            return free_use(layout)
        if t in shared and not (group == OWN_GROUP and layout.partial):
            return Use(group=OWN_GROUP, via=shared[t], layout=layout)
        copy = self.network.copies.get((region.index, t, group))
        via = defined[t] if copy is None else self.node_layout(copy)
        return Use(group=group, via=via, layout=layout)

    def generate(self, op: Operator, wanted: dict[int, Layout]) -> Strategy:
        """The strategy that makes the first result as its first user wants it, if there is one."""
        whole = (NONE,) * len(self.sizes)
        if op.bodies or not op.outputs or op.outputs[0] not in wanted:
            return whole
        found = strategy_for_result(op.rule, 0, wanted[op.outputs[0]], self.sizes)
        return whole if found is None else found[0]


def expand(network: LayoutNetwork, choice: Sequence[int]) -> GraphDecision:
    """Return the decision about every operator that a choice of every node means.

    Args:
        network: The nodes.
        choice: For each node the number of its choice.
    """
    expander = _Expander(network, choice)
    graph: Graph = network.graph
    inputs = tuple(
        network.nodes[network.maker[0, t]].layouts[choice[network.maker[0, t]]]
        for t in graph.inputs
    )
    outputs = {j: inputs[i] for i, j in graph.aliases}
    outputs.update({j: expander.node_layout(node) for j, node in network.results.items()})
    found = expander.region(network.regions[0], inputs, outputs)
    return replace(found, in_host=network.in_host) if network.in_host else found
