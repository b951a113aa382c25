"""What each iteration of a loop would make again, and a compiler makes once, before the loop.

XLA moves what depends on constants of a loop alone before it, unless it is larger than they are:
the rounded copies of float32 weights that products read.  (Conversions that a step asks for, a plan
takes out of the loop itself.)

Source: XLA while_loop_invariant_code_motion.cc; compiled programs (libtpu 0.0.42.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from meshwise.graph.barriers import BARRIER
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, local_shape
from meshwise.graph.structure import COND
from meshwise.plan.decision import GraphDecision, OperatorDecision

_WIDE, _NARROW_BYTES = "float32", 2


def rounded_constants(
    owner: Operator, chosen: OperatorDecision, sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return what is rounded before a loop: the operand, and the bytes of the copy.

    Args:
        owner: The operator with the loop's body.
        chosen: Its decision.
        sizes: Sizes of the axes of the mesh.
    """
    structure = owner.structure
    assert structure is not None
    if structure.kind == COND or structure.length < 2:
        return []
    changing = {k for k, _ in structure.carries} | structure.stacked_operands
    found: list[tuple[int, int]] = []
    for part, body, decision in zip(structure.parts, owner.bodies, chosen.bodies, strict=True):
        inputs = zip(part.operands, body.inputs, strict=True)
        found += _factors(body, decision, {t: k for k, t in inputs if k not in changing}, sizes)
    return found


def _factors(
    body: Graph, decision: GraphDecision, fixed: dict[int, int], sizes: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the float32 factors of products among the fixed tensors, each once."""
    done: set[tuple[int, Layout]] = set()
    for op, chosen in zip(body.operators, decision.operators, strict=True):
        for t, use in zip(op.inputs, chosen.uses, strict=True):
            if t not in fixed:
                continue
            tensor = body.tensors[t]
            if op.kind == BARRIER:
                fixed[op.outputs[0]] = fixed[t]
            elif op.heavy and tensor.dtype == _WIDE and (fixed[t], use.layout) not in done:
                done.add((fixed[t], use.layout))
                count = math.prod(local_shape(tensor.shape, use.layout, sizes))
                yield fixed[t], count * _NARROW_BYTES
