"""Pallas kernels, interpreted: attention of JAX's own, and a small one with rows in blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

from doubles.gpu_attention import gpu_attention
from rule_cases.case import Case, floats, ints

ROWS, WIDTH = 256, 32
# A block of splash attention has 128 rows or more.
_BLOCK = 128
_SIZES = (
    "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute "
    "block_q_dq block_kv_dq"
)


def splash(
    num_heads: int, *, is_mqa: bool = False, rows: int = ROWS, interpret: bool = True
) -> Callable[..., Any]:
    """Splash attention of one row of the batch, with a causal mask: (head, row, feature)."""
    sizes: dict[str, Any] = dict.fromkeys(_SIZES.split(), _BLOCK)
    mask = splash_attention_mask.CausalMask((rows, rows))
    of_heads = splash_attention_kernel.make_splash_mha
    return (splash_attention_kernel.make_splash_mqa if is_mqa else of_heads)(
        splash_attention_mask.MultiHeadMask([mask] * num_heads),
        block_sizes=splash_attention_kernel.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )


def gradients(fun: Callable[..., Any], *operands: Any) -> Any:
    """Return what a loss of the results gives for each operand, which runs all kernels."""
    return jax.grad(lambda xs: jnp.sum(jnp.sin(fun(*xs))))(operands)


def _splash(num_heads: int, *operands: Any) -> Any:
    with jax.ensure_compile_time_eval():
        kernel = splash(num_heads, is_mqa=operands[1].ndim == 3)
    return gradients(jax.vmap(kernel), *operands)


def _gpu(*operands: Any) -> Any:
    sizes = gpu_attention.BlockSizes(8, 8, 8, 8, 8, 8)
    return gradients(
        lambda q, k, v: gpu_attention.mha(
            q, k, v, None, 0.5, causal=True, block_sizes=sizes, interpret=True
        ),
        *operands,
    )


def heads(batch: int, num_heads: int, num_keys: int, rows: int, width: int = WIDTH) -> Any:
    """Queries, keys and values: (batch, head, row, feature)."""
    shapes = ((batch, n, rows, width) for n in (num_heads, num_keys, num_keys))
    return tuple(floats(*shape, low=-1.0) + i for i, shape in enumerate(shapes))


def _scaled(x: Any, scale: Any) -> Any:
    """Rows in blocks of two, and a result that all blocks overwrite: the last one stays."""

    def kernel(x: Any, scale: Any, out: Any, last: Any) -> None:
        out[...] = x[...] * scale[...]
        last[...] = x[...]

    return pl.pallas_call(
        kernel,
        grid=(x.shape[0] // 2,),
        in_specs=[
            pl.BlockSpec((2, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0)),
        ],
        out_specs=[
            pl.BlockSpec((2, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec((2, x.shape[1]), lambda i: (0, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((2, x.shape[1]), x.dtype),
        ],
        interpret=True,
    )(x, scale)


CASES = (
    Case("pallas_call", "rows in blocks", _scaled, (ints(16, 4), ints(1, 4))),
    Case("pallas_call", "heads of a GPU", _gpu, tuple(
        np.swapaxes(x, 1, 2) for x in heads(4, 4, 4, 16, 16)), rtol=2e-5, costly=True),
    Case("pallas_call", "splash, grouped heads", partial(_splash, 4), heads(2, 4, 2, ROWS),
         rtol=2e-5, costly=True),
    Case("pallas_call", "splash, equal heads", partial(_splash, 4), heads(2, 4, 4, ROWS),
         rtol=2e-5, costly=True),
)  # fmt: skip
