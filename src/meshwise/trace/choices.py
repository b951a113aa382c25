"""A choice between equal values is that value, whatever decides it.

The first micro-batch keeps the operand of a scatter-add, the others take zeros; in the gradient of
a lookup the operand is zeros too.  XLA folds such a `select_n`, with all collectives of its result
and of its predicate, so none may be planned: the value is a generated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwise.rules.primitive import rebind
from meshwise.trace.arange import without_dead_code
from meshwise.trace.program import Node, Program, merged

# Every element of the result is an element of the operand.
_MOVES = (
    *("broadcast_in_dim", "reshape", "squeeze", "transpose"),
    *("copy", "stop_gradient", "optimization_barrier"),
)


class _Elements:
    """Values all of whose elements are one constant; lives only inside `without_idle_choices`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.makers = {out: node for node in program.nodes for out in node.outputs}
        self.known: dict[int, Any] = {}

    def of(self, ident: int) -> Any:
        """Return the element that all others equal, a NumPy scalar; None if not known."""
        if ident not in self.known:
            self.known[ident] = self._found(ident)
        return self.known[ident]

    def _found(self, ident: int) -> Any:
        dtype = self.program.avals[ident].dtype
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            return None
        if ident in self.program.constants:
            array = np.asarray(self.program.constants[ident], dtype)
            return array[()] if array.shape == () else None
        node = self.makers.get(ident)
        if node is not None and node.name == "select_n":
            return self._shared([self.of(i) for i in node.inputs[1:]])
        if node is None or len(node.inputs) != 1 or node.bodies:
            return None
        if node.name in _MOVES:
            return self.of(node.inputs[0])
        if node.name == "convert_element_type" and (element := self.of(node.inputs[0])) is not None:
            with jax.ensure_compile_time_eval():
                return np.asarray(rebind(node.equation, [element])[0])[()]
        return None

    def _shared(self, elements: Sequence[Any]) -> Any:
        # By their bits: there are two zeros, and no NaN equals any.
        bits = {None if element is None else element.tobytes() for element in elements}
        return elements[0] if len(bits) == 1 else None


def without_idle_choices(program: Program) -> Program:
    """Return the program, bodies as they are, without any `select_n` between equal values."""
    elements = _Elements(program)

    def same_as(node: Node) -> tuple[int, ...] | None:
        is_idle = node.name == "select_n" and _is_idle(program, elements, node)
        return (node.inputs[1],) if is_idle else None

    found = merged(program, same_as)
    return program if len(found.nodes) == len(program.nodes) else without_dead_code(found)


def _is_idle(program: Program, elements: _Elements, node: Node) -> bool:
    result, (_, first, *others) = node.outputs[0], node.inputs
    if program.avals[first].weak_type != program.avals[result].weak_type:
        return False
    return all(other == first for other in others) or elements.of(result) is not None
