"""A flat program: a jaxpr with calls inlined, values numbered, constants attached.

Value ids are positions in `Program.avals`; they are the tensor ids of the graph made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise.graph.graph import HOST_CALL
from meshwise.graph.structure import Structure
from meshwise.jax_compat.jaxprs import Aval
from meshwise.jax_compat.source_lines import SourceInfo
from meshwise.rules.primitive import Equation


@dataclass(frozen=True, slots=True)
class Node:
    """One equation of a program.

    Attributes:
        equation: Primitive, parameters and avals.
        inputs: Ids of the operands.
        outputs: Ids of the results.
        source: JAX source info, for error messages.
        bodies: The bodies of a `scan`, `cond` or `while`.
        structure: How operands and results are bound to the bodies; None without.
    """

    equation: Equation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    source: SourceInfo | None = None
    bodies: tuple[Program, ...] = ()
    structure: Structure | None = None

    @property
    def name(self) -> str:
        """Primitive name."""
        return self.equation.name

    @property
    def has_effect(self) -> bool:
        """Whether it calls a function of the host for its effect, itself or in a body."""
        return self.name == HOST_CALL or any(
            node.has_effect for body in self.bodies for node in body.nodes
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A straight-line program; loops and branches are nodes with programs of their own.

    Attributes:
        avals: Shape and dtype of every value.
        inputs: Ids of the arguments.
        nodes: Equations in order.
        outputs: Ids of the results.
        constants: Values known at trace time: literals and captured arrays.
        results: Ids of what leaves the loss (value, auxiliary results, gradients), where that is
            asked for: means over micro-batches once statistics are local.
    """

    avals: tuple[Aval, ...]
    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Any]
    results: frozenset[int] = frozenset()

    def source(self, ident: int) -> SourceInfo | None:
        """Return the source of what makes a value; None for an argument or a constant."""
        return next((node.source for node in self.nodes if ident in node.outputs), None)


def merged(program: Program, same_as: Callable[[Node], Sequence[int] | None]) -> Program:
    """Return a program without the nodes whose results are other values.

    Args:
        program: The program.
        same_as: For a node, its operands already renamed, the values that are its results, renamed
            likewise; None for a node that stays.  It is asked in the order of the nodes.
    """
    same: dict[int, int] = {}
    nodes: list[Node] = []
    for old in program.nodes:
        node = replace(old, inputs=tuple(same.get(i, i) for i in old.inputs))
        others = same_as(node)
        if others is None:
            nodes.append(node)
        else:
            same.update(zip(node.outputs, others, strict=True))
    outputs = tuple(same.get(i, i) for i in program.outputs)
    return replace(program, nodes=tuple(nodes), outputs=outputs)
