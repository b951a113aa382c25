"""Whose are the seconds of a step: computation and collectives by operator and by argument.

A change of layout of an argument is the argument's.  Else the reduction of a partial result is
that of the dense operator which made it, another change that of the dense operator which wants
it, or else that of the one which made it.  What is left, that of light operators, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.plan.counts.collectives import sent
from meshwise.plan.counts.walk import Exchange, Reshard, exchanges, inside, reshards
from meshwise.plan.decision import GraphDecision
from meshwise.plan.offload import bytes_in_host, crossing_s

# Positions of an operator: of each enclosing one with the number of its body, then its own.
Path = tuple[int, ...]
# Seconds a step by kind of collective.
ByKind = dict[str, float]
# What moves between hosts and their devices, beside the kinds of collectives.
HOST = "host"


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
    """

    arguments: dict[int, ByKind] = field(default_factory=dict[int, ByKind])
    operators: dict[Path, ByKind] = field(default_factory=dict[Path, ByKind])


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
    """Return the time that a step spends in collectives and with hosts, by what causes it.

    Args:
        graph: The graph.
        decision: The decision about it.
        mesh: Where it runs.

    Returns:
        Seconds a step for each argument and each dense operator.
    """
    found = Communication()
    for scope in scopes(graph, decision):
        for seconds, made in _owned(found, scope, mesh.sizes):
            for kind, axes, _, num_bytes, sharers in sent(made, mesh):
                once = collective_time_s(kind, axes, num_bytes, mesh, sharers=sharers)
                seconds[kind] = seconds.get(kind, 0.0) + scope.times * made.times * once
    for i in decision.in_host:
        crossing = crossing_s(bytes_in_host(graph, decision, mesh, (i,)), mesh.device)
        found.arguments.setdefault(i, {})[HOST] = crossing
    return found


def _owned(
    found: Communication, scope: DecidedScope, sizes: tuple[int, ...]
) -> Iterator[tuple[ByKind, Reshard | Exchange]]:
    """Yield the transfers of a graph, each with the seconds that its own are added to."""
    graph = scope.graph
    makers = {t: i for i, op in enumerate(graph.operators) if op.heavy for t in op.outputs}
    *of_operators, of_outputs = reshards(graph, scope.decision)

    def of_operator(i: int) -> ByKind:
        return found.operators.setdefault((*scope.path, i), {})

    def of(moves: list[Reshard], user: int | None) -> Iterator[tuple[ByKind, Reshard]]:
        for move in moves:
            owner = makers.get(move.ident)
            if user is not None and (owner is None or not move.before.partial):
                owner = user
            if move.ident in scope.arguments:
                yield found.arguments.setdefault(scope.arguments[move.ident], {}), move
            elif owner is not None:
                yield of_operator(owner), move

    for i, (op, chosen) in enumerate(zip(graph.operators, scope.decision.operators, strict=True)):
        yield from of(of_operators[i], i if op.heavy else None)
        if op.heavy:
            yield from ((of_operator(i), x) for x in exchanges(graph, op, chosen, sizes))
    yield from of(of_outputs, None)
