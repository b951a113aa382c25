"""Which loops of an operator run over weights, over heads, over experts; nothing looks at a name.

A tensor that no loop over the batch runs over is a weight or the gradient of one.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwise.baselines.roles import PARAMETER, InputInfo, batch_loops
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.loops import DimMap
from meshwise.intra.options import OperatorPath

# A weight with a dim of experts is at least a table for each of them.
_EXPERT_DIMS = 3


def _loops_of(dims: DimMap) -> frozenset[int]:
    return frozenset(x for run in dims for x in run)


def _tensors(op: Operator) -> list[frozenset[int]]:
    return [_loops_of(dims) for dims in (*op.rule.operands, *op.rule.results)]


def _common(tensors: list[frozenset[int]]) -> frozenset[int]:
    """Loops that run over all of some tensors."""
    found = tensors[0]
    for loops in tensors[1:]:
        found = found & loops
    return found


def tensor_loops(op: Operator, rows: frozenset[int]) -> frozenset[int]:
    """Loops along which tensor parallelism splits an operator.

    With a weight (or its gradient): the loops of the weight.  Without one, as in attention: those
    that run over all its tensors, heads; if there are none, all but those over the batch.

    Args:
        op: The operator.
        rows: Its loops over the batch.
    """
    tensors = _tensors(op)
    weights = [loops for loops in tensors if loops and not loops & rows]
    if weights:
        return frozenset[int]().union(*weights)
    heads = _common(tensors) - rows
    return heads or frozenset(range(len(op.rule.loops))) - rows


def expert_loops(op: Operator, rows: frozenset[int]) -> frozenset[int]:
    """Loops of a product over experts: they run over all its tensors, one of which is a weight."""
    tensors = _tensors(op)
    if all(loops & rows for loops in tensors):
        return frozenset()
    return _common(tensors) - rows


def expert_inputs(
    graph: Graph, info: InputInfo, found: Mapping[OperatorPath, frozenset[int]]
) -> dict[int, int]:
    """The dim of experts of each parameter that has one, by position among the inputs.

    Args:
        graph: The graph.
        info: Its inputs.
        found: For each operator its loops over the batch.
    """
    dims: dict[int, int] = {}
    for i, role in enumerate(info.roles):
        rank = len(graph.tensors[graph.inputs[i]].shape)
        for d in range(rank if role == PARAMETER and rank >= _EXPERT_DIMS else 0):
            if i not in dims and _runs_over_experts(graph, batch_loops(graph, {i: d}), found):
                dims[i] = d
    return dims


def _runs_over_experts(
    graph: Graph,
    loops: Mapping[OperatorPath, frozenset[int]],
    rows: Mapping[OperatorPath, frozenset[int]],
) -> bool:
    for path, mine in loops.items():
        op = operator_at(graph, path)
        if op.heavy and path in rows and mine & expert_loops(op, rows[path]):
            return True
    return False


def operator_at(graph: Graph, path: OperatorPath) -> Operator:
    """The operator at a path."""
    op = graph.operators[path[0]]
    for body, place in zip(path[1::2], path[2::2], strict=True):
        op = op.bodies[body].operators[place]
    return op
