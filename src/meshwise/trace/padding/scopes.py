"""A program and the bodies of its scans, numbered, so that values of all of them have one name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshwise.graph.structure import SCAN
from meshwise.trace.program import Node, Program

# A value: number of its scope, id in the program of the scope.
Value = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One program of a nest.

    Attributes:
        number: Position in the order in which `scopes_of` yields them.
        program: The program.
        times: How often it runs in a step.
        bodies: The scopes of its scans, by position of the equation.
        generated: Ids of values without an argument among their ancestors.
    """

    number: int
    program: Program
    times: int
    bodies: Mapping[int, Scope]
    generated: frozenset[int]

    def is_generated(self, node: Node) -> bool:
        """Return whether an equation can be made again at any size that is wanted."""
        return all(ident in self.generated for ident in node.outputs)


def nest(program: Program) -> Scope:
    """Return the scope of a whole step, with those of its scans inside."""
    return _nest(program, 1, [0])


def _nest(program: Program, times: int, counter: list[int]) -> Scope:
    number = counter[0]
    counter[0] += 1
    generated = set(program.constants)
    bodies: dict[int, Scope] = {}
    for position, node in enumerate(program.nodes):
        if node.structure is not None and node.structure.kind == SCAN:
            bodies[position] = _nest(node.bodies[0], times * node.structure.length, counter)
        elif not node.bodies and all(i in generated for i in node.inputs):
            generated.update(node.outputs)
    return Scope(
        number=number,
        program=program,
        times=times,
        bodies=bodies,
        generated=frozenset(generated),
    )


def scopes_of(scope: Scope) -> Iterator[Scope]:
    """Yield the scope and all inside it, in order of their numbers."""
    yield scope
    for body in scope.bodies.values():
        yield from scopes_of(body)


@dataclass(frozen=True, slots=True)
class Port:
    """A value of a scan that is one thing outside and inside.

    Attributes:
        entry: The outer operand; -1 for a stacked result, which has none.
        arrival: The input of the body, likewise.
        departure: The result of the body; -1 for constants and xs, which have none.
        exit: The outer result, likewise.
        shift: Dims that the outer values have before those of the inner ones.
    """

    entry: int = -1
    arrival: int = -1
    departure: int = -1
    exit: int = -1
    shift: int = 0


def ports_of(node: Node) -> list[Port]:
    """Return the constants, carries, xs and ys of a scan, in this order."""
    (body,), structure = node.bodies, node.structure
    assert structure is not None
    (part,) = structure.parts
    departures = dict(zip(part.results, body.outputs, strict=True))
    ports: list[Port] = []
    for k, inner in zip(part.operands, body.inputs, strict=True):
        j = structure.carried_result(k)
        if j is not None:
            ports.append(Port(node.inputs[k], inner, departures[j], node.outputs[j]))
        else:
            ports.append(Port(node.inputs[k], inner, shift=int(k in structure.stacked_operands)))
    stacked = sorted(structure.stacked_results)
    return [
        *ports,
        *(Port(departure=departures[j], exit=node.outputs[j], shift=1) for j in stacked),
    ]
