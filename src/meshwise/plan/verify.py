"""Checks that a decision is a legal program of a graph on a mesh.

The checks use only the rules of the operators and the reachability of layouts, nothing of the
planner, so that they catch its mistakes and those of a plan edited by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import PlanError
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, is_valid, replicated, shift_in
from meshwise.graph.loops import (
    LoopRule,
    Strategy,
    is_feasible,
    operand_layouts,
    result_layouts,
)
from meshwise.graph.structure import COND, PREDICATE, Structure
from meshwise.plan.counts.walk import place
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.offload import offloadable
from meshwise.resharding.within import path
from meshwise.system.identity import Same

# Layouts of operands and of results.
_Made = tuple[tuple[Layout, ...], tuple[Layout, ...]]


def verify_decision(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> None:
    """Check every layout, strategy and change of layout, bodies included.

    Args:
        graph: The graph that was planned.
        decision: The decision about it.
        mesh: The mesh that it is for.

    Raises:
        PlanError: naming the operator with its source line, or the input or output.
    """
    _verify_graph(graph, decision, _Known(mesh), inside="")
    for position, layout in enumerate(decision.inputs):
        if layout.partial:
            raise PlanError(f"input {position} enters partial ({layout}); a step has no such input")
    for position, use in enumerate(decision.outputs):
        if use.layout.partial:
            raise PlanError(f"output {position} leaves partial ({use.layout})")
    _check_in_host(graph, decision)
    for source, target in graph.aliases:
        before, after = decision.inputs[source], decision.outputs[target].layout
        if before != after:
            raise PlanError(
                f"input {source} enters as {before}, but output {target}, which takes its place "
                f"in the next step, leaves as {after}"
            )


def _check_in_host(graph: Graph, decision: GraphDecision) -> None:
    if not decision.in_host:
        return
    wrong = sorted(set(decision.in_host) - set(offloadable(graph)))
    if wrong:
        raise PlanError(
            f"input {wrong[0]} lies in the memory of the host, but it is not state that the step "
            "returns anew and that only the update reads"
        )


def _same_count(what: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise PlanError(f"{what}: the plan has {got}, the step has {wanted}")


class _Known:
    """What was found right: equal operators and changes of layout are checked once.

    Rules are told by their ids; each is kept, so that its id stays taken.
    """

    def __init__(self, mesh: LogicalMesh) -> None:
        self.mesh = mesh
        self.sizes = mesh.sizes
        self.layouts: set[tuple[Layout, tuple[int, ...]]] = set()
        self.changes: set[tuple[tuple[int, ...], int, Layout, Layout]] = set()
        self.rules: dict[Same, dict[Strategy, _Made]] = {}


def _check_layout(what: str, layout: Layout, shape: tuple[int, ...], known: _Known) -> None:
    if (layout, shape) in known.layouts:
        return
    axes = [a for dim in layout.dims for a in dim] + list(layout.partial)
    unknown = sorted(a for a in axes if not 0 <= a < len(known.sizes))
    if unknown or not is_valid(layout, shape, known.sizes):
        raise PlanError(
            f"{what}: {layout} is not a layout of shape {shape} on a mesh of sizes {known.sizes}"
        )
    known.layouts.add((layout, shape))


def _verify_graph(graph: Graph, decision: GraphDecision, known: _Known, inside: str) -> None:
    _same_count(f"inputs{inside}", len(decision.inputs), len(graph.inputs))
    _same_count(f"operators{inside}", len(decision.operators), len(graph.operators))
    _same_count(f"outputs{inside}", len(decision.outputs), len(graph.outputs))
    home: dict[int, Layout] = {}
    for position, (ident, layout) in enumerate(zip(graph.inputs, decision.inputs, strict=True)):
        _check_layout(f"input {position}{inside}", layout, graph.tensors[ident].shape, known)
        home[ident] = layout
    for operator, chosen in zip(graph.operators, decision.operators, strict=True):
        what = f"{place(operator)}{inside}"
        _same_count(f"operands of {what}", len(chosen.uses), len(operator.inputs))
        _same_count(f"results of {what}", len(chosen.results), len(operator.outputs))
        for position, (ident, use) in enumerate(zip(operator.inputs, chosen.uses, strict=True)):
            _verify_use(f"operand {position} of {what}", graph, ident, use, home, known)
        if operator.structure is None:
            _verify_strategy(what, operator, chosen, known)
        else:
            _verify_bodies(what, operator, operator.structure, chosen, known)
        for position, (ident, layout) in enumerate(
            zip(operator.outputs, chosen.results, strict=True)
        ):
            shape = graph.tensors[ident].shape
            _check_layout(f"result {position} of {what}", layout, shape, known)
            home[ident] = layout
    for position, (ident, use) in enumerate(zip(graph.outputs, decision.outputs, strict=True)):
        _verify_use(f"output {position}{inside}", graph, ident, use, home, known)


def _verify_use(
    what: str,
    graph: Graph,
    ident: int,
    use: Use,
    home: dict[int, Layout],
    known: _Known,
) -> None:
    """The operand exists, and its layouts can be reached."""
    tensor = graph.tensors[ident]
    for layout in (use.via, use.layout):
        _check_layout(what, layout, tensor.shape, known)
    if tensor.generated:
        return
    if ident not in home:
        raise PlanError(f"{what} is used before it is defined")
    for before, after in ((home[ident], use.via), (use.via, use.layout)):
        change = (tensor.shape, tensor.itemsize, before, after)
        if before == after or change in known.changes:
            continue
        try:
            path(*change, known.mesh)
        except PlanError as error:
            raise PlanError(f"{what}: {error}") from error
        known.changes.add(change)


def _verify_strategy(
    what: str, operator: Operator, chosen: OperatorDecision, known: _Known
) -> None:
    """The strategy is feasible, and the layouts are those that follow from it."""
    if chosen.bodies:
        raise PlanError(f"{what} has no body, but the plan has a decision for one")
    strategy = chosen.strategy
    made = known.rules.setdefault(Same(operator.rule), {})
    if strategy not in made:
        made[strategy] = _made(what, operator.rule, strategy, known.sizes)
    operands, results = made[strategy]
    sides = (
        ("operand", tuple(use.layout for use in chosen.uses), operands),
        ("result", chosen.results, results),
    )
    for side, got, wanted in sides:
        for position, (one, other) in enumerate(zip(got, wanted, strict=True)):
            if one != other:
                raise PlanError(
                    f"{side} {position} of {what}: the plan has {one}, but strategy {strategy} "
                    f"makes it {other}"
                )


def _made(what: str, rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> _Made:
    """Layouts of operands and results that a strategy makes.

    Raises:
        PlanError: it is no strategy of the rule.
    """
    _same_count(f"axes in the strategy of {what}", len(strategy), len(sizes))
    lowest, highest = -1 - len(rule.linear), len(rule.loops) - 1
    if not all(lowest <= choice <= highest for choice in strategy):
        raise PlanError(f"{what}: strategy {strategy} names a loop that is not there")
    if not is_feasible(rule, strategy, sizes):
        raise PlanError(
            f"{what}: strategy {strategy} does not divide its loops evenly"
            + (", or makes tiles shorter than their halos" if rule.halos else "")
        )
    operands, results = (
        operand_layouts(rule, strategy, sizes),
        result_layouts(rule, strategy, sizes),
    )
    assert operands is not None  # is_feasible
    assert results is not None
    return operands, results


def _verify_bodies(
    what: str,
    operator: Operator,
    structure: Structure,
    chosen: OperatorDecision,
    known: _Known,
) -> None:
    """Each body is a legal program, fits operands and results, and returns carries as they came."""
    if not chosen.bodies:
        raise PlanError(f"{what}: the plan has no decision for its body")
    _same_count(f"bodies of {what}", len(chosen.bodies), len(structure.parts))
    for k in sorted(structure.whole_operands):
        layout = chosen.uses[k].layout
        if layout != replicated(len(layout.dims)):
            raise PlanError(
                f"operand {k} of {what} says which branch runs and must be whole on every device, "
                f"but enters as {layout}"
            )
    names = _names_of_bodies(what, structure)
    for name, part, graph, inner in zip(
        names, structure.parts, operator.bodies, chosen.bodies, strict=True
    ):
        _verify_graph(graph, inner, known, inside=f" inside {name}")
        for k, layout in zip(part.operands, inner.inputs, strict=True):
            wanted = shift_in(layout) if k in structure.stacked_operands else layout
            if chosen.uses[k].layout != wanted:
                raise PlanError(
                    f"operand {k} of {name} enters as {chosen.uses[k].layout}, but its body wants "
                    f"{wanted}"
                )
        for j, use in zip(part.results, inner.outputs, strict=True):
            _verify_result(name, structure, chosen, j, use.layout)


def _names_of_bodies(what: str, structure: Structure) -> list[str]:
    count = len(structure.parts)
    if structure.kind == COND:
        return [f"branch {p} of {what}" for p in range(count)]
    return [what] if count == 1 else [f"the predicate of {what}", what]


def _verify_result(
    name: str, structure: Structure, chosen: OperatorDecision, j: int, layout: Layout
) -> None:
    """An output of a body leaves it as the result of the operator that it becomes."""
    if j == PREDICATE:
        if layout != replicated(len(layout.dims)):
            raise PlanError(f"{name} leaves it as {layout}, but it must be whole on every device")
        return
    carry = structure.carry_of(j)
    if carry is not None and chosen.uses[carry].layout != layout:
        raise PlanError(
            f"carry {j} of {name} enters an iteration as {chosen.uses[carry].layout}, but leaves "
            f"it as {layout}"
        )
    wanted = shift_in(layout) if j in structure.stacked_results else layout
    if chosen.results[j] != wanted:
        raise PlanError(
            f"result {j} of {name}: the plan has {chosen.results[j]}, but its body makes it "
            f"{wanted}"
        )
