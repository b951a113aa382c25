"""Whose are the seconds of a step: computation and collectives by operator and by argument.

A change of layout of an argument is the argument's.  Else the reduction of a partial result is
that of the dense operator which made it, another change that of the dense operator which wants
it, or else that of the one which made it.  What is left belongs to light operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwise.cluster.collectives import PERMUTE, collective_time_s
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.halo import edge_elements
from meshwise.graph.layout import Layout
from meshwise.plan.counts.walk import Legs, inside
from meshwise.plan.decision import GraphDecision, OperatorDecision
from meshwise.resharding.moves import FREE
from meshwise.resharding.within import path

# Positions of an operator: of each enclosing one with the number of its body, then its own.
Path = tuple[int, ...]
# Seconds a step by kind of collective.
ByKind = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedScope:
    """One graph of a nest.

    Attributes:
        path: Path of the enclosing operators.
        graph: The graph.
        decision: Its decision.
        times: How often it runs in a step.
        arguments: Tensors that are an argument of the step, or slices of one, with its position.
    """

    path: Path
    graph: Graph
    decision: GraphDecision
    times: int
    arguments: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Seconds a step in collectives.

    Attributes:
        arguments: By position.
        operators: By path; dense operators only.
        others: Seconds of light operators.
    """

    arguments: dict[int, ByKind] = field(default_factory=dict[int, ByKind])
    operators: dict[Path, ByKind] = field(default_factory=dict[Path, ByKind])
    others: ByKind = field(default_factory=dict[str, float])


NO_COMMUNICATION = Communication()


def scopes(graph: Graph, decision: GraphDecision) -> Iterator[DecidedScope]:
    """Yield the graph and all bodies inside, outer ones first."""
    arguments = {ident: position for position, ident in enumerate(graph.inputs)}
    scope = DecidedScope(path=(), graph=graph, decision=decision, times=1, arguments=arguments)
    yield from _with_inner(scope)


def _with_inner(scope: DecidedScope) -> Iterator[DecidedScope]:
    yield scope
    for i, (op, chosen) in enumerate(
        zip(scope.graph.operators, scope.decision.operators, strict=True)
    ):
        structure = op.structure
        if structure is None:
            continue
        for p, (part, body, decided) in enumerate(inside(op, chosen)):
            arguments = {
                body.inputs[n]: scope.arguments[op.inputs[k]]
                for n, k in enumerate(part.operands)
                if op.inputs[k] in scope.arguments and structure.carried_result(k) is None
            }
            yield from _with_inner(
                DecidedScope(
                    path=(*scope.path, i, p),
                    graph=body,
                    decision=decided,
                    times=scope.times * part.trips,
                    arguments=arguments,
                )
            )


def communication(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> Communication:
    """Return the time that a step spends in collectives, by what causes them.

    Args:
        graph: The graph.
        decision: The decision about it.
        mesh: Where it runs.

    Returns:
        Seconds a step for each argument and each dense operator.
    """
    found = Communication()
    for scope in scopes(graph, decision):
        _add_scope(found, scope, mesh)
    return found


def _add_scope(found: Communication, scope: DecidedScope, mesh: LogicalMesh) -> None:
    graph, legs = scope.graph, Legs(scope.graph, scope.decision)
    makers = {t: i for i, op in enumerate(graph.operators) if op.heavy for t in op.outputs}

    def owner(ident: int, before: Layout, user: int | None) -> ByKind:
        if ident in scope.arguments:
            return found.arguments.setdefault(scope.arguments[ident], {})
        maker = makers.get(ident)
        if (
            user is not None
            and graph.operators[user].heavy
            and (maker is None or not before.partial)
        ):
            maker = user
        if maker is None:
            return found.others
        return found.operators.setdefault((*scope.path, maker), {})

    for i, (op, chosen) in enumerate(zip(graph.operators, scope.decision.operators, strict=True)):
        for ident, use in zip(op.inputs, chosen.uses, strict=True):
            for before, after in legs.of(ident, use):
                _add_move(owner(ident, before, i), scope, ident, before, after, mesh)
        _add_edges(
            found.operators.setdefault((*scope.path, i), {}) if op.heavy else found.others,
            scope,
            op,
            chosen,
            mesh,
        )
    for ident, use in zip(graph.outputs, scope.decision.outputs, strict=True):
        for before, after in legs.of(ident, use):
            _add_move(owner(ident, before, None), scope, ident, before, after, mesh)


def _add_move(
    seconds: ByKind,
    scope: DecidedScope,
    ident: int,
    before: Layout,
    after: Layout,
    mesh: LogicalMesh,
) -> None:
    tensor = scope.graph.tensors[ident]
    for step in path(tensor.shape, tensor.itemsize, before, after, mesh):
        if step.kind in FREE or step.group_size == 1:
            continue
        once = collective_time_s(step.kind, step.axes, step.num_bytes, mesh)
        seconds[step.kind] = seconds.get(step.kind, 0.0) + scope.times * once


def _add_edges(
    seconds: ByKind, scope: DecidedScope, op: Operator, chosen: OperatorDecision, mesh: LogicalMesh
) -> None:
    tensors = [scope.graph.tensors[ident] for ident in op.inputs]
    shapes = [tensor.shape for tensor in tensors]
    for edge, elements in edge_elements(op.rule, chosen.strategy, mesh.sizes, shapes):
        num_bytes = elements * tensors[edge.halo.operand].itemsize * edge.group_size
        once = collective_time_s(PERMUTE, edge.axes, num_bytes, mesh)
        seconds[PERMUTE] = seconds.get(PERMUTE, 0.0) + scope.times * once
