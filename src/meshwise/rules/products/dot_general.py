"""`dot_general`: batch and free dims are parallel loops, contracted dims are sums.

Source: Alpa table 3 follows from these loops.
"""

from __future__ import annotations

import math

from meshwise.graph.layout import SUM
from meshwise.graph.loops import DimMap, Loop, LoopRule
from meshwise.rules.primitive import Equation, PrimitiveRule


def dot_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: batch, free dims of the left, of the right, contracted."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    lhs, rhs = eqn.in_avals[0].shape, eqn.in_avals[1].shape
    left: list[tuple[int, ...]] = [()] * len(lhs)
    right: list[tuple[int, ...]] = [()] * len(rhs)
    result: list[tuple[int, ...]] = []
    loops: list[Loop] = []

    def new_loop(size: int, kind: str = "parallel") -> tuple[int, ...]:
        if size == 1:
            return ()
        loops.append(Loop(size, kind))
        return (len(loops) - 1,)

    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        left[i] = right[j] = new_loop(lhs[i])
        result.append(left[i])
    for i in range(len(lhs)):
        if i not in lhs_batch and i not in lhs_contract:
            left[i] = new_loop(lhs[i])
            result.append(left[i])
    for j in range(len(rhs)):
        if j not in rhs_batch and j not in rhs_contract:
            right[j] = new_loop(rhs[j])
            result.append(right[j])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        left[i] = right[j] = new_loop(lhs[i], SUM)
    maps: tuple[DimMap, DimMap] = (tuple(left), tuple(right))
    return LoopRule(tuple(loops), maps, (tuple(result),), linear=((0,), (1,)))


def dot_flop(eqn: Equation) -> float:
    """Return 2 M N K, times the batch."""
    (lhs_contract, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.in_avals[0].shape
    return 2.0 * math.prod(eqn.out_avals[0].shape) * math.prod(lhs[i] for i in lhs_contract)


TABLE = {"dot_general": PrimitiveRule(dot_rule, flop=dot_flop, heavy=True)}
