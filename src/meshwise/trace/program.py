"""A flat program: a jaxpr with calls inlined, values numbered, constants attached.

Value ids are positions in `Program.avals`; they are the tensor ids of the graph made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwise.rules.primitive import Equation


@dataclass(frozen=True, slots=True)
class ScanShape:
    """Structure of a `scan`: operands are constants, carries, xs; results carries, ys."""

    num_consts: int
    num_carry: int
    length: int
    reverse: bool


@dataclass(frozen=True, slots=True)
class Node:
    """One equation of a program.

    Attributes:
        equation: Primitive, parameters and avals.
        inputs: Ids of the operands.
        outputs: Ids of the results.
        source: JAX source info, for error messages.
        body: Body of a `scan`.
        scan: Structure of a `scan`.
    """

    equation: Equation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    source: Any = None
    body: Program | None = None
    scan: ScanShape | None = None

    @property
    def name(self) -> str:
        """Primitive name."""
        return self.equation.name


@dataclass(frozen=True, slots=True)
class Program:
    """A straight-line program with nested scans.

    Attributes:
        avals: Shape and dtype of every value.
        inputs: Ids of the arguments.
        nodes: Equations in order.
        outputs: Ids of the results.
        constants: Values known at trace time: literals and captured arrays.
    """

    avals: tuple[Any, ...]
    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Any]
