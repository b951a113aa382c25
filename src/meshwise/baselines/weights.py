"""Which loops of an operator run over weights and over heads; nothing looks at a name.

A tensor that no loop over the batch runs over is a weight or the gradient of one.
"""

from __future__ import annotations

from meshwise.graph.graph import Operator
from meshwise.graph.loops import DimMap


def _loops_of(dims: DimMap) -> frozenset[int]:
    return frozenset(x for run in dims for x in run)


def tensors_of(op: Operator) -> list[frozenset[int]]:
    """Return for each operand and result of an operator the loops that run over it."""
    return [_loops_of(dims) for dims in (*op.rule.operands, *op.rule.results)]


def common_loops(tensors: list[frozenset[int]]) -> frozenset[int]:
    """Return the loops that run over all of some tensors."""
    found = tensors[0]
    for loops in tensors[1:]:
        found = found & loops
    return found


def head_loops(op: Operator, rows: frozenset[int]) -> frozenset[int]:
    """Return the loops of an operator that run over heads.

    In a product without a weight they run over all its tensors.  In attention as one operator they
    run over both keys and values, and are not the sequence: a mask need not have heads.  A product
    with a weight has none.

    Args:
        op: The operator.
        rows: Its loops over the batch.
    """
    ring = op.rule.ring
    if ring is not None:
        moving = [_loops_of(op.rule.operands[k]) for k in ring.operands]
        return common_loops(moving) - rows - {ring.loop, ring.rows}
    tensors = tensors_of(op)
    has_weight = not all(loops & rows for loops in tensors)
    return frozenset() if has_weight else common_loops(tensors) - rows


def tensor_loops(op: Operator, rows: frozenset[int]) -> frozenset[int]:
    """Return the loops along which tensor parallelism splits an operator.

    A product with a weight, or with its gradient, is split along the loops of the weight, and a
    product without one, as in attention, along heads.  Attention as one operator is split along
    heads only.  Others, and products without heads, are split along all loops but those over the
    batch, as along the vocabulary where the logits of labels are picked.

    Args:
        op: The operator.
        rows: Its loops over the batch.
    """
    if op.rule.ring is not None:
        return head_loops(op, rows)
    weights = [loops for loops in tensors_of(op) if loops and not loops & rows]
    if weights:
        return frozenset[int]().union(*weights)
    heads = head_loops(op, rows) if op.heavy else frozenset[int]()
    return heads or frozenset(range(len(op.rule.loops))) - rows
