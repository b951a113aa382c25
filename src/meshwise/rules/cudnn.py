"""Attention by cuDNN: what `jax.nn.dot_product_attention(implementation="cudnn")` binds.

`cudnn_attention` binds it on a machine without cuDNN, where a step is planned and compiled for one
that has it.

    forward   queries, keys, values, bias, lengths and offsets (4), tables of pages (2)
              -> result, and the logarithms of the sums of rows where it is differentiated
    backward  the same, these logarithms, result, cotangent
              -> gradients for queries, keys, values, and for the bias if there is one

Loops: rows of the batch, heads of keys, and the heads of queries that share one of these.  Rows of
queries and keys stay whole, since each kernel runs its own softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from meshwise.graph.layout import SUM
from meshwise.graph.loops import PARALLEL, DimMap, LoopRule
from meshwise.jax_compat.cudnn import attention_by_cudnn, cudnn_on_one_device
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards

_BATCH_FIRST_HEADS_THEN = 1  # AttentionLayout.BNTH of JAX; 0 has rows before heads
# Operands before the tables of pages.
_LENGTHS, _OFFSETS, _PAGES = (4, 5), (6, 7), (8, 9)
# Products of the size of the scores, over features of queries and of values.  The backward pass
# computes the scores again.
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = (1, 1), (3, 2)


def cudnn_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | None = None,
) -> Array:
    """Return attention by cuDNN, also where the machine that plans has no cuDNN.

    It is `jax.nn.dot_product_attention(..., implementation="cudnn")`, which JAX refuses to trace
    without cuDNN.  What it gives can be planned and compiled for GPUs anywhere; it runs on a GPU.

    Args:
        query: (batch, row, head, feature), in 16 bits.
        key: (batch, key, head of keys, feature); these heads divide those of queries.
        value: (batch, key, head of keys, feature).
        bias: (1 or batch, 1 or head, row, key), added to the scores.
        mask: The same, of booleans: which keys a row sees.
        scale: Factor of the scores; 1 / sqrt(features) by default.
        is_causal: Whether a row sees no key after its own place.
        query_seq_lengths: Number of rows of each sequence, int32.
        key_value_seq_lengths: Number of keys of each sequence, int32.
        local_window_size: How many keys before its own place a row sees; with `is_causal`.

    Returns:
        (batch, row, head, feature).

    Raises:
        NotImplementedError: cuDNN has no attention for these types or sizes (by JAX).
        ValueError: shapes do not fit (by JAX).
    """

    def array(x: ArrayLike | None) -> Array | None:
        return None if x is None else jnp.asarray(x)

    return attention_by_cudnn(
        jnp.asarray(query),
        jnp.asarray(key),
        jnp.asarray(value),
        array(bias),
        array(mask),
        scale=scale,
        is_causal=is_causal,
        lengths=(array(query_seq_lengths), array(key_value_seq_lengths)),
        window=local_window_size,
    )


class _Sizes(NamedTuple):
    """Sizes of attention."""

    batch: int
    rows: int
    keys: int
    heads: int
    key_heads: int


def _sizes(eqn: Equation) -> _Sizes:
    queries, keys = (aval.shape for aval in eqn.in_avals[:2])
    rows, heads = (2, 1) if eqn.params["layout"] == _BATCH_FIRST_HEADS_THEN else (1, 2)
    return _Sizes(queries[0], queries[rows], keys[rows], queries[heads], keys[heads])


def _whole(eqn: Equation) -> tuple[str, str]:
    """Return why nothing may be split, and why rows of the batch may not; empty where they may."""
    shapes = [aval.shape for aval in eqn.in_avals]
    if eqn.params["dropout_rate"] > 0:
        return "dropout of cuDNN draws the same numbers in each part", ""
    if any(len(shapes[i]) > 1 for i in _PAGES):
        return "", "pages of several rows of the batch lie together"
    if any(len(shapes[i]) > 1 for i in _OFFSETS):
        return "", "sequences are packed across the batch"
    return "", ""


def attention_rule(eqn: Equation, *, backward: bool) -> LoopRule:
    """Return the loops: rows of the batch, heads of keys, and what shares one of these.

    Args:
        eqn: The equation.
        backward: Whether it is the gradient.
    """
    sizes, avals = _sizes(eqn), eqn.in_avals
    whole, whole_batch = _whole(eqn)
    bias = avals[3].shape
    has_gradient = backward and eqn.params["variadic_args"][1]
    # A bias that several rows or heads share gets a gradient from each of them.
    shares = [has_gradient and bias[d] == 1 for d in (0, 1)] if len(bias) == 4 else [False, False]
    loops = LoopList()
    batch = () if whole or whole_batch else loops.add(sizes.batch, SUM if shares[0] else PARALLEL)
    heads: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    if not whole:
        heads = loops.add(sizes.key_heads, SUM if shares[1] else PARALLEL)
        group = loops.add(sizes.heads // sizes.key_heads, SUM if backward else PARALLEL)
    every = (*heads, *group)

    def arranged(of_heads: tuple[int, ...]) -> DimMap:
        if eqn.params["layout"] == _BATCH_FIRST_HEADS_THEN:
            return (batch, of_heads, (), ())
        return (batch, (), of_heads, ())

    queries, keys = arranged(every), arranged(heads)
    of_bias: DimMap = dims_like(bias)
    if len(bias) == 4:
        of_bias = (batch if bias[0] > 1 else (), every if bias[1] > 1 else (), (), ())
    sums: DimMap = (batch, every, ())
    of_lengths = [
        (batch,) if len(avals[i].shape) == 1 and avals[i].shape[0] else dims_like(avals[i].shape)
        for i in (*_LENGTHS, *_OFFSETS)
    ]
    of_pages = [dims_like(avals[i].shape) for i in _PAGES]
    operands = (queries, keys, keys, of_bias, *of_lengths, *of_pages)
    results: tuple[DimMap, ...] = (queries, sums)[: len(eqn.out_avals)]
    if backward:
        operands = (*operands, sums, queries, queries)
        results = (queries, keys, keys, of_bias)[: len(eqn.out_avals)]
    return LoopRule(loops.done(), operands, results, whole=whole or whole_batch)


def attention_flop(eqn: Equation, *, products: tuple[int, int]) -> float:
    """Return the FLOP of the products; cuDNN leaves out scores that a causal mask hides.

    Args:
        eqn: The equation.
        products: Products of the size of the scores, over features of queries and of values.
    """
    sizes, params = _sizes(eqn), eqn.params
    features = sum(n * eqn.in_avals[i].shape[-1] for n, i in zip(products, (0, 2), strict=True))
    seen = 0.5 if "CAUSAL" in params["mask_type"].name else 1.0
    window = params["sliding_window_length"]
    if window:
        seen = min(seen, window / sizes.keys)
    return 2.0 * seen * sizes.batch * sizes.heads * sizes.rows * sizes.keys * features


def local_attention(eqn: Equation, shards: Shards, operands: Sequence[Array]) -> list[Array]:
    """Run the kernel on local operands.

    Args:
        eqn: The equation.
        shards: How its loops are split.
        operands: The local operands.
    """
    del shards
    return cudnn_on_one_device(eqn.primitive, operands, eqn.params)


def _row(*, backward: bool) -> PrimitiveRule:
    products = _BACKWARD_PRODUCTS if backward else _FORWARD_PRODUCTS
    return PrimitiveRule(
        partial(attention_rule, backward=backward),
        local_attention,
        flop=partial(attention_flop, products=products),
        heavy=True,
    )


TABLE = {
    "dot_product_attention_fwd_wrapper": _row(backward=False),
    "dot_product_attention_bwd_wrapper": _row(backward=True),
}
