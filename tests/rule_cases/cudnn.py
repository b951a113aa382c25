"""Attention by cuDNN, played by plain JAX: what is tested is which loops it may be split along.

The kernels of cuDNN run on GPUs only.  Here a primitive of the same name with the same parameters
computes what they are said to compute, in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from rule_cases.case import Case, floats


class Mask(Enum):
    """Masks by the names that JAX gives them."""

    NO_MASK = 0
    PADDING_CAUSAL = 3


def _attended(
    q: Array, k: Array, v: Array, bias: Array, rows: Array, keys: Array, *, params: Any
) -> tuple[Array, Array]:
    """Return the result and, for each row, the logarithm of its sum."""
    if params["layout"] == 0:
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = params["scale"] * jnp.einsum("bntd,bnsd->bnts", q, k)
    scores = scores + bias if bias.ndim == 4 else scores
    row, key = (jnp.arange(n)[:, None] for n in scores.shape[2:])
    if params["mask_type"] is Mask.PADDING_CAUSAL:
        seen = (row >= key.T) & (keys[:, None, None, None] > key.T)
        scores = jnp.where(seen & (row < rows[:, None, None, None]), scores, -1e9)
    sums = jax.nn.logsumexp(scores, axis=-1)
    result = jnp.einsum("bnts,bnsd->bntd", jnp.exp(scores - sums[..., None]), v)
    return jnp.swapaxes(result, 1, 2) if params["layout"] == 0 else result, sums


def _forward(*operands: Array, **params: Any) -> list[Array]:
    return list(_attended(*operands[:6], params=params))[: 1 + params["is_training"]]


def _backward(*operands: Array, **params: Any) -> list[Array]:
    def result(q: Array, k: Array, v: Array, bias: Array) -> Array:
        return _attended(q, k, v, bias, *operands[4:6], params=params)[0]

    _, pull = jax.vjp(result, *operands[:4])
    return list(pull(operands[-1]))[: 3 + params["variadic_args"][1]]


def _primitive(name: str, run: Callable[..., list[Array]]) -> Primitive:
    made = Primitive(name)
    made.multiple_results = True
    made.def_impl(run)
    made.def_abstract_eval(
        lambda *avals, **params: [
            ShapedArray(x.shape, x.dtype) for x in jax.eval_shape(partial(run, **params), *avals)
        ]
    )
    mlir.register_lowering(made, mlir.lower_fun(run, multiple_results=True))

    def batched(operands: Any, dims: Any, **params: Any) -> Any:
        found = jax.vmap(partial(run, **params), in_axes=tuple(dims))(*operands)
        return found, (0,) * len(found)

    batching.primitive_batchers[made] = batched
    return made


_FORWARD = _primitive("dot_product_attention_fwd_wrapper", _forward)
_BACKWARD = _primitive("dot_product_attention_bwd_wrapper", _backward)


def _run(primitive: Primitive, params: dict[str, Any], *operands: Array) -> Any:
    return primitive.bind(*map(jnp.asarray, operands), **params)


def _cases(
    name: str,
    *,
    heads: tuple[int, int] = (4, 2),
    layout: int = 0,
    bias: tuple[int, int] | None = None,
    mask: Mask = Mask.NO_MASK,
) -> tuple[Case, Case]:
    """Return cases of the forward and the backward pass: 2 rows of the batch, 6 rows, 8 keys."""
    batch, rows, keys, width = 2, 6, 8, 4

    def array(number: int, length: int, count: int) -> Any:
        shape = (batch, count, length, width) if layout else (batch, length, count, width)
        return floats(*shape, low=-1.0) * (1 + number)

    q, k, v = array(0, rows, heads[0]), array(1, keys, heads[1]), array(2, keys, heads[1])
    none = np.zeros(0, np.float32)
    lengths = (none, none)
    if mask is Mask.PADDING_CAUSAL:
        lengths = (np.asarray([4, 6], np.int32), np.asarray([5, 8], np.int32))
    of_bias = none if bias is None else floats(*bias, rows, keys, low=-1.0)
    params = {
        "scale": 0.5,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (bias is not None, bias is not None),
        "mask_type": mask,
        "layout": layout,
        "sliding_window_length": None,
    }
    first = (q, k, v, of_bias, *lengths, none, none, none, none)
    result, sums = _attended(*map(jnp.asarray, first[:6]), params=params)
    kept = (np.asarray(sums), np.asarray(result), np.cos(np.asarray(result)))
    forward = partial(_run, _FORWARD, params | {"is_training": True})
    backward = partial(_run, _BACKWARD, params)
    return (
        Case(_FORWARD.name, name, forward, first, rtol=1e-5),
        Case(_BACKWARD.name, name, backward, (*first, *kept), rtol=1e-5),
    )


CASES = (
    *_cases("grouped heads"),
    *_cases("heads before rows", heads=(4, 4), layout=1),
    *_cases("one head of keys, a bias that rows share", heads=(4, 1), bias=(1, 4)),
    *_cases("a bias that heads share", bias=(2, 1)),
    *_cases("causal, sequences of different lengths", mask=Mask.PADDING_CAUSAL),
)
