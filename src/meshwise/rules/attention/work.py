"""What attention computes, holds besides operands and results, and writes and reads.

Source of what it holds: temporaries of both operators, compiled by XLA:CPU and XLA:GPU
(JAX 0.10.2).  Of what is written and read, all that is element-wise is taken as fused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwise.graph.chunks import chunk_of
from meshwise.graph.graph import Scratch
from meshwise.rules.attention.blocks import Attention
from meshwise.rules.primitive import Equation


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of an attention operator.

    Attributes:
        num_scores: Number of scores.
        num_keys: Keys of a row.
        of_keys: Features of a key.
        of_values: Features of a value.
        sum_bytes: Bytes of a number in the dtype of sums.
        weight_bytes: In that of weights.
        query_bytes: In that of queries.
        is_grouped: Whether heads share keys.
        is_cast: Whether the first result has another dtype than sums.
    """

    num_scores: int
    num_keys: int
    of_keys: int
    of_values: int
    sum_bytes: int
    weight_bytes: int
    query_bytes: int
    is_grouped: bool
    is_cast: bool


def _sizes(eqn: Equation) -> _Sizes:
    attention: Attention = eqn.params["attention"]
    queries, keys, values = eqn.in_avals[:3]

    def itemsize(dtype: Any) -> int:
        return np.dtype(dtype).itemsize

    return _Sizes(
        num_scores=math.prod(queries.shape[:-1]) * keys.shape[-2],
        num_keys=keys.shape[-2],
        of_keys=keys.shape[-1],
        of_values=values.shape[-1],
        sum_bytes=itemsize(attention.sum_dtype),
        weight_bytes=itemsize(attention.weight_dtype),
        query_bytes=itemsize(queries.dtype),
        is_grouped=math.prod(queries.shape[attention.num_batch : -2]) > 1,
        is_cast=eqn.out_avals[0].dtype != attention.sum_dtype,
    )


def forward_flop(eqn: Equation) -> float:
    """Return the FLOP of both products of the forward pass."""
    sizes = _sizes(eqn)
    return 2.0 * sizes.num_scores * (sizes.of_keys + sizes.of_values)


def backward_flop(eqn: Equation) -> float:
    """Return the FLOP of the five products of the backward pass, which makes scores again."""
    sizes = _sizes(eqn)
    return 2.0 * sizes.num_scores * (3 * sizes.of_keys + 2 * sizes.of_values)


def forward_scratch(eqn: Equation) -> Scratch:
    """Return the scratch of the forward pass.

    It is scores, weights if they lie apart, and sums if the result has another dtype.
    """
    sizes, attention = _sizes(eqn), eqn.params["attention"]
    # Weights take the memory of the scores, unless they have another dtype, or the scores or their
    # product lie there in a form of their own, too.
    is_changed = attention.num_batch > 1 or (attention.num_batch == 1 and attention.scores.steps)
    is_apart = sizes.weight_bytes != sizes.sum_bytes or sizes.is_grouped or is_changed
    each = sizes.sum_bytes + (sizes.weight_bytes if is_apart else 0)
    sums = sizes.num_scores // sizes.num_keys * sizes.of_values * sizes.sum_bytes
    return _scratch(
        eqn,
        held=each,
        whole=sums if sizes.is_cast else 0,
        # Scores and weights are written once and read once.
        moved=2 * sizes.sum_bytes + 2 * sizes.weight_bytes,
        # Queries are read; sums, and what a chunk adds to them, are written and read.
        moved_by_row=sizes.of_keys * sizes.query_bytes + 4 * sizes.of_values * sizes.sum_bytes,
    )


def backward_scratch(eqn: Equation) -> Scratch:
    """Return the scratch of the backward pass.

    In the dtype of sums it is scores and the cotangents of weights; in that of weights it is
    weights and the cotangents of the product.  With groups of heads one lies there in two orders.
    """
    sizes = _sizes(eqn)
    features = sizes.of_keys + sizes.of_values
    return _scratch(
        eqn,
        held=2 * sizes.sum_bytes + (2 + sizes.is_grouped) * sizes.weight_bytes,
        whole=0,
        # Scores and the cotangents of weights are written and read, and so are weights; cotangents
        # of the product are written once and read by two products.
        moved=4 * sizes.sum_bytes + 2 * sizes.weight_bytes + 3 * sizes.query_bytes,
        # Queries and cotangents of the result are read by two products each; gradients for queries,
        # and what a chunk adds to them, are written and read.
        moved_by_row=2 * features * sizes.query_bytes + 4 * sizes.of_keys * sizes.sum_bytes,
    )


def _scratch(eqn: Equation, *, held: int, whole: int, moved: int, moved_by_row: int) -> Scratch:
    """Return what both passes have in common.

    Args:
        eqn: The operator.
        held: Bytes that are held for each score.
        whole: Bytes, of the whole operator, of which a device holds its whole part at once.
        moved: Bytes that are written and read for each score.
        moved_by_row: The same for each row with each chunk of keys.
    """
    sizes = _sizes(eqn)
    chunk = chunk_of(sizes.num_keys, eqn.params["attention"].chunk)
    return Scratch(
        num_bytes=float(sizes.num_scores * held),
        share=chunk / sizes.num_keys,
        traffic_bytes=sizes.num_scores * (moved + moved_by_row / chunk),
        whole_bytes=float(whole),
    )
