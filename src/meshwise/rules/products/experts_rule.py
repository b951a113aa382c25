"""Loops of experts as one operator, and of its gradient."""

from __future__ import annotations

from meshwise.graph.layout import SUM
from meshwise.graph.loops import PARALLEL, DimMap, LoopRule
from meshwise.graph.sent import Dispatch
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation
from meshwise.rules.products.row_function import RowFunction

# Number of operands before the matrices: rows and sizes, and the cotangent.
FORWARD, BACKWARD = 2, 3


def experts_rule(eqn: Equation, num_first: int) -> LoopRule:
    """Return the loops: dims of rows, width between the products, groups, that of the dispatch.

    Gradients for matrices are sums over rows.

    Args:
        eqn: The equation.
        num_first: `FORWARD` or `BACKWARD`.
    """
    kind = PARALLEL if num_first == FORWARD else SUM
    function: RowFunction = eqn.params["function"]
    num_outer: int = eqn.params["num_outer"]
    rows, sizes = eqn.in_avals[:2]
    matrices = eqn.in_avals[num_first:]
    loops = LoopList()
    of_rows = [
        loops.add(size, kind, block=i == num_outer) for i, size in enumerate(rows.shape[:-1])
    ]
    inner = function.inner_dims([x.shape for x in matrices])
    width = next((loops.add(matrices[k].shape[dim], SUM) for k, dim in inner.items()), ())
    groups = loops.add(sizes.shape[-1], SUM, block=True)
    with_sizes = of_rows[:num_outer] if len(sizes.shape) > 1 else []
    by_row: DimMap = (*of_rows, ())
    of_matrices: tuple[DimMap, ...] = tuple(
        (groups, *(width if inner.get(k) == dim else () for dim in (1, 2)))
        for k in range(len(matrices))
    )
    operands = (by_row, (*with_sizes, ()), *((by_row,) if num_first == BACKWARD else ()))
    results = (by_row,) if num_first == FORWARD else (by_row, *of_matrices)
    dispatch = None
    outer = next((i for i, loop in enumerate(of_rows[: num_outer + 1]) if loop), None)
    if outer is not None and groups:
        (loop,) = loops.add(rows.shape[outer], block=True)
        moving = (0,) if num_first == FORWARD else (0, 2)
        dims = (tuple(range(len(of_rows))),) * (len(moving) + 1)
        dispatch = Dispatch(loop, of_rows[outer][0], groups[0], moving, (0,), dims)
    return LoopRule(
        loops=loops.done(),
        operands=(*operands, *of_matrices),
        results=results,
        linear=() if num_first == FORWARD else ((2,),),
        dispatch=dispatch,
    )
