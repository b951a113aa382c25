"""Random legal decisions for a graph: every layout and strategy drawn, nothing optimised."""

from __future__ import annotations

import random
from collections.abc import Sequence

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import PlanError
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, replicated, shift_in, split_layouts
from meshwise.graph.loops import (
    NONE,
    Strategy,
    enumerate_strategies,
    operand_layouts,
    result_layouts,
)
from meshwise.graph.structure import PREDICATE, Structure
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.resharding.within import path


def random_decision(
    graph: Graph,
    mesh: LogicalMesh,
    rng: random.Random,
    inputs: Sequence[Layout] | None = None,
    outputs: Sequence[Layout | None] | None = None,
) -> GraphDecision:
    """Draw a decision; `inputs` and `outputs` fix layouts (aliased outputs follow their input)."""
    chosen_inputs = tuple(
        inputs
        if inputs is not None
        else (_random_layout(graph.tensors[i].shape, mesh, rng) for i in graph.inputs)
    )
    home: dict[int, Layout] = dict(zip(graph.inputs, chosen_inputs, strict=True))
    decisions: list[OperatorDecision] = []
    for operator in graph.operators:
        if operator.structure is not None:
            decision = _random_bodies(graph, operator, operator.structure, mesh, rng, home)
        else:
            decision = _random_operator(graph, operator, mesh, rng, home)
        decisions.append(decision)
        home.update(zip(operator.outputs, decision.results, strict=True))
    alias = {out: chosen_inputs[pos] for pos, out in graph.aliases}
    finals: list[Use] = []
    for position, ident in enumerate(graph.outputs):
        wanted = alias.get(position)
        if outputs is not None and outputs[position] is not None:
            wanted = outputs[position]
        if wanted is None:
            wanted = _random_layout(graph.tensors[ident].shape, mesh, rng)
        finals.append(_use(graph, ident, home, wanted, 0))
    return GraphDecision(inputs=chosen_inputs, operators=tuple(decisions), outputs=tuple(finals))


def _random_layout(shape: Sequence[int], mesh: LogicalMesh, rng: random.Random) -> Layout:
    return rng.choice(list(split_layouts(shape, mesh.sizes)))


def _use(graph: Graph, ident: int, home: dict[int, Layout], layout: Layout, group: int) -> Use:
    via = home.get(ident, layout)
    if graph.tensors[ident].generated:
        via = layout
    return Use(group=group, via=via, layout=layout)


def _reachable(
    graph: Graph, operator: Operator, mesh: LogicalMesh, strategy: Strategy, home: dict[int, Layout]
) -> bool:
    layouts = operand_layouts(operator.rule, strategy, mesh.sizes)
    assert layouts is not None
    for ident, layout in zip(operator.inputs, layouts, strict=True):
        tensor = graph.tensors[ident]
        if tensor.generated:
            continue
        try:
            path(tensor.shape, tensor.itemsize, home[ident], layout, mesh)
        except PlanError:
            return False
    return True


def _random_operator(
    graph: Graph,
    operator: Operator,
    mesh: LogicalMesh,
    rng: random.Random,
    home: dict[int, Layout],
) -> OperatorDecision:
    strategies = list(enumerate_strategies(operator.rule, mesh.sizes))
    if all(graph.tensors[i].generated for i in operator.outputs):
        strategies = [(NONE,) * len(mesh.sizes)]
    while True:
        strategy = rng.choice(strategies)
        if _reachable(graph, operator, mesh, strategy, home):
            break
        strategies.remove(strategy)
    wanted = operand_layouts(operator.rule, strategy, mesh.sizes)
    results = result_layouts(operator.rule, strategy, mesh.sizes)
    assert wanted is not None
    assert results is not None
    uses = tuple(
        _use(graph, i, home, lay, rng.randrange(2))
        for i, lay in zip(operator.inputs, wanted, strict=True)
    )
    return OperatorDecision(strategy=strategy, uses=uses, results=results)


def _random_bodies(
    graph: Graph,
    operator: Operator,
    structure: Structure,
    mesh: LogicalMesh,
    rng: random.Random,
    home: dict[int, Layout],
) -> OperatorDecision:
    def inside(ident: int, stacked: bool) -> Layout:
        shape = graph.tensors[ident].shape
        return _random_layout(shape[1:] if stacked else shape, mesh, rng)

    operands = [
        replicated(0)
        if k in structure.whole_operands
        else inside(i, k in structure.stacked_operands)
        for k, i in enumerate(operator.inputs)
    ]
    results = [inside(i, j in structure.stacked_results) for j, i in enumerate(operator.outputs)]
    for k, j in structure.carries:
        results[j] = operands[k]
    bodies = tuple(
        random_decision(
            body,
            mesh,
            rng,
            [operands[k] for k in part.operands],
            [replicated(0) if j == PREDICATE else results[j] for j in part.results],
        )
        for part, body in zip(structure.parts, operator.bodies, strict=True)
    )
    outer = [shift_in(w) if k in structure.stacked_operands else w for k, w in enumerate(operands)]
    uses = tuple(
        _use(graph, i, home, layout, rng.randrange(2))
        for i, layout in zip(operator.inputs, outer, strict=True)
    )
    leaving = tuple(
        shift_in(w) if j in structure.stacked_results else w for j, w in enumerate(results)
    )
    return OperatorDecision(strategy=(), uses=uses, results=leaving, bodies=bodies)
