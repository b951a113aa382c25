"""In which order of dims XLA keeps what is computed from products.

A product has its dims in their own order.  A transpose behind it moves nothing: XLA takes it as
another order of the dims in memory, and element-wise results keep the order of their operand.
Where two orders meet, the value that was computed from the later product is copied.

Source: XLA layout_assignment.cc; compiled programs (docs/measurements/target_memory.md).
"""

from __future__ import annotations

from typing import NamedTuple

from meshwise.graph.barriers import BARRIER
from meshwise.graph.graph import Graph, Operator

_CONVERSION = "convert_element_type"


class _Order(NamedTuple):
    """How a tensor lies in memory.

    Attributes:
        product: Position of the product from which it is computed.
        dims: Its dims that are longer than one, major one first.
        root: The result of the product, or what that is converted to.
    """

    product: int
    dims: tuple[int, ...]
    root: int


def copied_into_other_orders(graph: Graph) -> frozenset[int]:
    """Return the tensors of which all readers read a copy in another order of dims.

    Args:
        graph: The graph of a program or of a body.
    """
    orders: dict[int, _Order] = {}
    found: set[int] = set()
    for time, op in enumerate(graph.operators):
        (made, *_) = op.outputs or (-1,)
        if op.heavy and not op.dim_orders:
            dims = op.rule.results[0]
            orders[made] = _Order(time, tuple(d for d, loops in enumerate(dims) if loops), made)
        elif op.kind == "transpose" and op.inputs[0] in orders:
            orders[made] = _transposed(op, orders[op.inputs[0]])
        elif op.kind == BARRIER or _is_elementwise(op):
            shape = graph.tensors[made].shape
            read = [t for t in op.inputs if t in orders and graph.tensors[t].shape == shape]
            if read:
                first = min(orders[t] for t in read)
                found |= {orders[t].root for t in read if orders[t].dims != first.dims}
                is_converted = op.kind == _CONVERSION and first.root == read[0]
                orders[made] = first._replace(root=made) if is_converted else first
    return frozenset(found)


def _is_elementwise(op: Operator) -> bool:
    loops = op.rule.loops
    return op.structure is None and all(loop.kind == "parallel" for loop in loops)


def _transposed(op: Operator, order: _Order) -> _Order:
    (operand, *_), (result, *_) = op.rule.operands, op.rule.results
    place = {loops: dim for dim, loops in enumerate(result)}
    return order._replace(
        dims=tuple(place[operand[dim]] for dim in order.dims if operand[dim]),
        root=op.outputs[0] if order.root == op.inputs[0] else order.root,
    )
