"""Attention as one operator, and its gradient: masks of positions, biases, groups of heads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.graph.chunks import MOST_KEYS
from meshwise.rules.attention.blocks import Attention
from meshwise.rules.attention.operators import attention_gradient_p, attention_p
from meshwise.rules.attention.scores import KEY, ROW, Positions, Scores
from meshwise.rules.steps import Elementwise, Number
from rule_cases.case import Case, bools, floats

_SELECT = lax.select_n_p
_CAUSAL = (
    Positions(ROW, "int32"),
    Positions(KEY, "int32"),
    Elementwise(lax.ge_p, (), (1, 2)),
    Number(-1e30, "float32"),
    Elementwise(_SELECT, (), (3, 4, 0)),
)
# Value 1 is the other operand.
_BIASED = (Elementwise(lax.add_p, (), (0, 1)),)
_MASKED = (Number(-1e30, "float32"), Elementwise(_SELECT, (), (1, 2, 0)))


def _attention(num_batch: int, steps: tuple[Any, ...] = (), chunk: int = MOST_KEYS) -> Attention:
    return Attention(
        num_batch=num_batch,
        scores=Scores(steps),
        score_dtype="float32",
        weight_dtype="float32",
        result_dtype="float32",
        chunk=chunk,
    )


def _forward(attention: Attention, *operands: Any) -> Any:
    return attention_p.bind(*map(jnp.asarray, operands), attention=attention)


def _backward(attention: Attention, *operands: Any) -> Any:
    return attention_gradient_p.bind(*map(jnp.asarray, operands), attention=attention)


def _operands(
    batch: tuple[int, ...], group: tuple[int, ...], rows: int, keys: int
) -> tuple[Any, ...]:
    return (
        floats(*batch, *group, rows, 3),
        floats(*batch, keys, 3, low=-1.0),
        floats(*batch, keys, 5, low=-1.0, high=1.0),
    )


def _both(
    name: str,
    attention: Attention,
    operands: tuple[Any, ...],
    others: tuple[Any, ...] = (),
) -> tuple[Case, Case]:
    """Return cases of the operator and of its gradient."""
    queries, _, values = operands
    rows = queries.shape[:-1]
    kept = (
        floats(*rows, values.shape[-1], low=-1.0),
        np.full(rows, 0.5, np.float32),
        floats(*rows, low=1.0, high=9.0),
        floats(*rows, low=-1.0),
    )
    forward, backward = partial(_forward, attention), partial(_backward, attention)
    return (
        Case("attention", name, forward, (*operands, *others), rtol=1e-5),
        Case(
            "attention_gradient",
            name,
            backward,
            (*operands, *kept, *others),
            rtol=1e-5,
        ),
    )


def capped(chunk: int) -> Attention:
    """Causal attention in 64 bits, with scores tanh(product)."""
    steps = (
        Elementwise(lax.tanh_p, (("accuracy", None),), (0,)),
        Positions(ROW, "int32"),
        Positions(KEY, "int32"),
        Elementwise(lax.ge_p, (), (2, 3)),
        Number(-1e30, "float64"),
        Elementwise(_SELECT, (), (4, 5, 1)),
    )
    return replace(
        _attention(1, steps, chunk),
        score_dtype="float64",
        weight_dtype="float64",
        result_dtype="float64",
    )


def both_of(
    *,
    batch: tuple[int, ...],
    rows: int,
    keys: int,
    features: int,
    group: tuple[int, ...] = (),
    causal: bool = False,
    dtype: Any = np.float32,
    chunk: int = MOST_KEYS,
) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """Return attention, causal or without a mask, and its gradient, with shapes of operands."""

    def shape(*sizes: int, dtype: Any = dtype) -> Any:
        return jax.ShapeDtypeStruct((*batch, *sizes), dtype)

    attention = replace(
        _attention(len(batch), _CAUSAL if causal else (), chunk),
        weight_dtype=np.dtype(dtype).name,
        result_dtype=np.dtype(dtype).name,
    )
    queries = shape(*group, rows, features)
    operands = (queries, shape(keys, features), shape(keys, features))
    kept = (queries, *(shape(*group, rows, dtype=np.float32),) * 3)
    return (
        (lambda *x: attention_p.bind(*x, attention=attention), operands),
        (lambda *x: attention_gradient_p.bind(*x, attention=attention), (*operands, *kept)),
    )


CASES = (
    *_both("grouped heads, causal", _attention(2, _CAUSAL), _operands((2, 2), (2,), 8, 8)),
    *_both(
        "a bias of rows",
        _attention(1, _BIASED),
        _operands((2,), (), 8, 16),
        (bools(1, 8, 16) * np.float32(1),),
    ),
    *_both(
        "a mask of keys",
        _attention(1, _MASKED),
        _operands((8,), (), 4, 8),
        (bools(8, 1, 8),),
    ),
    *_both("chunks", _attention(1, _CAUSAL, 2), _operands((2,), (), 16, 32)),
    *_both("causal, in halves", _attention(1, _CAUSAL, 2), _operands((2,), (2,), 48, 48)),
    *_both("no batch", _attention(0), _operands((), (), 8, 8)),
)
