"""Reductions over dims: a reduced dim is a loop of its monoid; arg-reductions keep it whole."""

from __future__ import annotations

import math

import numpy as np

from meshwise.graph.layout import SUM
from meshwise.graph.loops import Loop, LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule

_MONOID = {
    "reduce_sum": SUM,
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
    "reduce_prod": None,
    "reduce_xor": None,
    "argmax": None,
    "argmin": None,
}


def reduce_rule(eqn: Equation) -> LoopRule:
    """Return loops: kept dims parallel; reduced dims of the monoid, or whole without one."""
    monoid = _MONOID[eqn.name]
    if monoid in ("and", "or") and eqn.in_avals[0].dtype != np.bool_:
        monoid = None  # of bits; a partial "and" is one of booleans
    shape, axes = eqn.in_avals[0].shape, set(eqn.params["axes"])
    loops: list[Loop] = []
    operand: list[tuple[int, ...]] = []
    result: list[tuple[int, ...]] = []
    for dim, size in enumerate(shape):
        reduced = dim in axes
        if size == 1 or (reduced and monoid is None):
            operand.append(())
        else:
            operand.append((len(loops),))
            loops.append(Loop(size, monoid if reduced and monoid else "parallel"))
        if not reduced:
            result.append(operand[-1])
    return LoopRule(
        tuple(loops),
        (tuple(operand),),
        (tuple(result),),
        linear=((0,),) if eqn.name == "reduce_sum" else (),
        whole="" if monoid else f"the reduced dims of {eqn.name}",
    )


def any_reduce_rule(eqn: Equation) -> LoopRule:
    """Kept dims are loops; reduced ones stay whole: nothing is known of the function."""
    count = len(eqn.in_avals) // 2
    shape, reduced = eqn.in_avals[0].shape, set(eqn.params["dimensions"])
    loops = LoopList()
    dims = tuple(loops.add_dims(shape, reduced))
    result = tuple(follows for dim, follows in enumerate(dims) if dim not in reduced)
    return LoopRule(
        loops.done(),
        (dims,) * count + ((),) * count,
        (result,) * count,
        whole="the reduced dims of a function without a known monoid",
    )


def _flop(eqn: Equation) -> float:
    return float(math.prod(eqn.in_avals[0].shape))


TABLE = {
    **{name: PrimitiveRule(reduce_rule, flop=_flop) for name in _MONOID},
    "reduce": PrimitiveRule(any_reduce_rule, flop=_flop),
}
