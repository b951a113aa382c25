"""Which equations run on every term of a sum over micro-batches, and which once on the sum.

Source: docs/decisions/0002, rule 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshwise.trace.program import Aval, Node, Program
from meshwise.trace.time.state import PARTIAL, TimeState
from meshwise.trace.to_graph import itemsize


def readers_of(program: Program) -> Counter[int]:
    """Return how often equations and results read each value.

    Args:
        program: The program.
    """
    read = (i for node in program.nodes for i in node.inputs)
    return Counter((*read, *program.outputs))


def runs_on_terms(
    program: Program, node: Node, states: Sequence[TimeState], readers: Counter[int]
) -> bool:
    """Return whether a linear equation on terms runs inside the loop.

    It does where that makes what is accumulated smaller; where it makes it wider, which keeps the
    precision of the sum that one device would make; and where it is all that becomes of its
    operand and makes no more of it, as a transpose: each term is then written as the sum is read
    later, and what makes the sum wider may follow.

    Args:
        program: The step.
        node: The equation.
        states: States of its operands.
        readers: What `readers_of` returns.
    """
    if node.name == "convert_element_type":
        return True
    terms = [i for i, s in zip(node.inputs, states, strict=True) if s.kind == PARTIAL]
    before, after = (
        sum(_num_bytes(program.avals[i]) for i in ids) for ids in (terms, node.outputs)
    )
    is_move = len(node.inputs) == 1 and readers[node.inputs[0]] == 1
    return after < before or (is_move and after == before)


def _num_bytes(aval: Aval) -> int:
    size = itemsize(aval.dtype)
    for dim in aval.shape:
        size *= dim
    return size
