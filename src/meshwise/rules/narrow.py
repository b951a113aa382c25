"""Numbers of four and eight bits: no sums of parts.

A sum of parts in `float8_e4m3fn` is rounded to three bits once for each part, which the product on
one device is not, and some of these types have no zero.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax.typing import DTypeLike

from meshwise.graph.layout import SUM
from meshwise.graph.loops import DimMap, LoopRule


def is_narrow(dtype: DTypeLike) -> bool:
    """Return whether a type is a float of at most eight bits, or whole numbers of at most four.

    Args:
        dtype: The type.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits <= 8
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits <= 4


def without_sums(rule: LoopRule, why: str) -> LoopRule:
    """Return a rule whose results are no sums of parts: dims that are summed over stay whole.

    Args:
        rule: The rule.
        why: Why they do.
    """
    every = range(len(rule.loops))
    gone = {i for i in every if rule.loops[i].kind == SUM}
    if not gone:
        return replace(rule, linear=())
    dims = [dim for dims in (*rule.operands, *rule.results) for dim in dims]
    if rule.ring is not None or rule.halos:
        gone = set(every)
    if rule.dispatch is not None:
        gone.add(rule.dispatch.loop)
    # A dim stays whole if a part of it does.
    while more := {i for dim in dims if gone & set(dim) for i in dim} - gone:
        gone |= more
    number = {loop: n for n, loop in enumerate(i for i in every if i not in gone)}

    def left(dims: DimMap) -> DimMap:
        return tuple(() if gone & set(dim) else tuple(number[i] for i in dim) for dim in dims)

    return LoopRule(
        loops=tuple(rule.loops[i] for i in number),
        operands=tuple(map(left, rule.operands)),
        results=tuple(map(left, rule.results)),
        whole=why,
        ruled=rule.ruled,
    )
