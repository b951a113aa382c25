"""The primitives of attention: their loops, their local forms, their derivative.

    attention            queries, keys, values, others -> result, largest scores, sums
    attention_gradient   queries, keys, values, cotangent, largest scores, sums, inner products,
                         others -> gradients for queries, keys, values

Loops: the batch dims, the dims of a group, and two for the rows of queries.  Along the first of
these two, the ring, keys and values are split as well, and go round.  Along the second each device
has all keys of its part of the ring, and gradients for keys and values are sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from meshwise.graph.layout import SUM
from meshwise.graph.loops import PARALLEL, DimMap, LoopRule
from meshwise.graph.sends import has_halves
from meshwise.graph.sent import Ring
from meshwise.rules.attention.blocks import (
    ALONE,
    Attention,
    Place,
    Pulled,
    attention_of,
    gradients_of,
)
from meshwise.rules.attention.causal import is_causal
from meshwise.rules.attention.diagonal import diagonal_of
from meshwise.rules.attention.halves import attention_in_halves, gradients_in_halves
from meshwise.rules.attention.work import (
    backward_flop,
    backward_scratch,
    forward_flop,
    forward_scratch,
)
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind

attention_p = Primitive("attention")
attention_p.multiple_results = True
attention_gradient_p = Primitive("attention_gradient")
attention_gradient_p.multiple_results = True

# Number of operands before the other operands of the scores.
_FORWARD, _BACKWARD = 3, 7


def _forward(*operands: Array, attention: Attention) -> list[Array]:
    queries, keys, values, *others = operands
    if _leaves_out(attention, operands, _FORWARD):
        return list(diagonal_of(attention, queries, keys, values).result())
    return list(attention_of(attention, queries, keys, values, others))


def _backward(*operands: Array, attention: Attention) -> list[Array]:
    if _leaves_out(attention, operands, _BACKWARD):
        queries, keys, values, *pulled = operands
        diagonal = diagonal_of(attention, queries, keys, values)
        return list(diagonal.gradients(Pulled(*pulled)))
    return _gradients(attention, operands, ALONE)


def _gradients(attention: Attention, operands: Sequence[Array], place: Place) -> list[Array]:
    queries, keys, values = operands[:3]
    pulled, others = Pulled(*operands[3:_BACKWARD]), operands[_BACKWARD:]
    if place.halves:
        return list(gradients_in_halves(attention, queries, keys, values, pulled, place))
    return list(gradients_of(attention, queries, keys, values, pulled, others, place))


def _leaves_out(attention: Attention, operands: Sequence[Any], num_first: int) -> bool:
    """Return whether a causal mask hides scores of these rows and keys, and nothing else does."""
    num_rows, num_keys = operands[0].shape[-2], operands[1].shape[-2]
    has_others = len(operands) > num_first
    return num_rows == num_keys and not has_others and is_causal(attention.scores)


def _forward_avals(*avals: Any, attention: Attention) -> list[ShapedArray]:
    queries, _, values, *_ = avals
    rows = queries.shape[:-1]
    return [
        ShapedArray((*rows, values.shape[-1]), np.dtype(attention.result_dtype)),
        *(ShapedArray(rows, np.dtype(attention.sum_dtype)),) * 2,
    ]


def _backward_avals(*avals: Any, attention: Attention) -> list[ShapedArray]:
    return [ShapedArray(aval.shape, np.dtype(attention.sum_dtype)) for aval in avals[:3]]


for _primitive, _run, _avals in (
    (attention_p, _forward, _forward_avals),
    (attention_gradient_p, _backward, _backward_avals),
):
    _primitive.def_impl(_run)
    _primitive.def_abstract_eval(_avals)
    mlir.register_lowering(_primitive, mlir.lower_fun(_run, multiple_results=True))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    attention: Attention, queries: Array, keys: Array, values: Array, others: Sequence[Array]
) -> Array:
    """Return the result of attention; the derivative takes `others` as constants.

    Args:
        attention: What is computed.
        queries: (batch ..., group ..., row, feature).
        keys: (batch ..., key, feature).
        values: (batch ..., key, feature).
        others: Other operands of the scores, with all their dims.
    """
    return attention_p.bind(queries, keys, values, *others, attention=attention)[0]


def _attend_forward(
    attention: Attention, queries: Array, keys: Array, values: Array, others: Sequence[Array]
) -> Any:
    result, *sums = attention_p.bind(queries, keys, values, *others, attention=attention)
    return result, (queries, keys, values, others, result, sums)


def _attend_backward(attention: Attention, kept: Any, cotangent: Array) -> Any:
    queries, keys, values, others, result, sums = kept
    dtype = attention.sum_dtype
    inner = jnp.sum(result.astype(dtype) * cotangent.astype(dtype), axis=-1)
    found = attention_gradient_p.bind(
        queries, keys, values, cotangent, *sums, inner, *others, attention=attention
    )
    gradients = [x.astype(y.dtype) for x, y in zip(found, (queries, keys, values), strict=True)]
    return (*gradients, [_no_cotangent(x) for x in others])


def _no_cotangent(value: Array) -> Any:
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.zeros_like(value)
    return np.zeros(value.shape, jax.dtypes.float0)


attend.defvjp(_attend_forward, _attend_backward)


def _rule(eqn: Equation, num_first: int, kind: str) -> LoopRule:
    """Return the loops; those that keys do not follow have the given kind."""
    attention: Attention = eqn.params["attention"]
    queries, keys = eqn.in_avals[:2]
    loops = LoopList()
    count = attention.num_batch
    batch = loops.add_dims(queries.shape[:count])
    group = [loops.add(size, kind) for size in queries.shape[count:-2]]
    num_rows, num_keys = queries.shape[-2], keys.shape[-2]
    ring, rows = (
        loops.add(num_rows, of_rows, block=True) if num_keys > 1 else tuple[int, ...]()
        for of_rows in (PARALLEL, kind)
    )
    every = (*batch, *group, (*ring, *rows))
    of_queries, of_keys = (*every, ()), (*batch, ring, ())
    of_others = [
        tuple(loop if size > 1 else () for size, loop in zip(aval.shape, (*every, ()), strict=True))
        for aval in eqn.in_avals[num_first:]
    ]
    first: tuple[DimMap, ...] = (of_queries, of_keys, of_keys)
    if num_first == _FORWARD:
        operands, results = first, (of_queries, every, every)
    else:
        operands, results = (*first, of_queries, every, every, every), first
    return LoopRule(
        loops=loops.done(),
        operands=(*operands, *of_others),
        results=results,
        ring=_ring(eqn, num_first, ring[0], rows[0]) if ring else None,
    )


def _ring(eqn: Equation, num_first: int, loop: int, rows: int) -> Ring:
    """Return what goes round; halves under a causal mask of as many rows as keys."""
    attention: Attention = eqn.params["attention"]
    returned = () if num_first == _FORWARD else (1, 2)
    ring = Ring(loop, rows, eqn.in_avals[1].shape[-2], (1, 2), returned)
    if not _leaves_out(attention, eqn.in_avals, num_first):
        return ring
    return replace(
        ring,
        halved_operands=tuple(range(num_first)),
        halved_results=tuple(range(len(eqn.out_avals))),
        chunk=attention.chunk,
    )


def _place(shards: Shards) -> Place | None:
    """Return where a device stands; None if it has all rows and keys of its part."""
    ring = shards.rule.ring
    if ring is None or shards.parts(ring.loop) == shards.parts(ring.rows) == 1:
        return None
    count, start = shards.parts(ring.loop), shards.block_start(ring.loop)
    row_start = start + shards.block_start(ring.rows) // count
    axes = shards.axis_names(ring.loop)
    if count == 1:
        return Place(row_start=row_start)
    return Place(
        row_start=row_start,
        axes=axes,
        count=count,
        rank=start // shards.local_size(ring.loop),
        halves=has_halves(shards.rule, count, shards.parts(ring.rows)),
    )


def _local_forward(eqn: Equation, shards: Shards, operands: Sequence[Array]) -> list[Array]:
    place = _place(shards)
    if place is None:
        return rebind(eqn, operands)
    queries, keys, values, *others = operands
    attention = eqn.params["attention"]
    if place.halves:
        return list(attention_in_halves(attention, queries, keys, values, place))
    return list(attention_of(attention, queries, keys, values, others, place))


def _local_backward(eqn: Equation, shards: Shards, operands: Sequence[Array]) -> list[Array]:
    place = _place(shards)
    if place is None:
        return rebind(eqn, operands)
    return _gradients(eqn.params["attention"], operands, place)


TABLE = {
    "attention": PrimitiveRule(
        partial(_rule, num_first=_FORWARD, kind=PARALLEL),
        _local_forward,
        forward_flop,
        heavy=True,
        scratch=forward_scratch,
    ),
    "attention_gradient": PrimitiveRule(
        partial(_rule, num_first=_BACKWARD, kind=SUM),
        _local_backward,
        backward_flop,
        heavy=True,
        scratch=backward_scratch,
    ),
}
