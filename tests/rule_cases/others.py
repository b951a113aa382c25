"""Products, reductions, cumulative and sorting primitives, linear algebra."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from rule_cases.case import Case, bools, floats, ints

_CLOSE = 1e-4


def _dot(contract: Any, batch: Any = ((), ()), **options: Any) -> Any:
    return lambda x, y: lax.dot_general(x, y, (contract, batch), **options)


DOTS = (
    Case("dot_general", "matrices", jnp.matmul, (ints(8, 8), ints(8, 8))),
    Case(
        "dot_general", "batched", _dot(((2,), (1,)), ((0,), (0,))), (ints(8, 2, 4), ints(8, 4, 2))
    ),
    Case("dot_general", "two contracted", _dot(((0, 2), (1, 0))), (ints(8, 2, 4), ints(4, 8, 2))),
    Case("dot_general", "vector", jnp.matmul, (ints(8, 16), ints(16))),
    Case("dot_general", "dims of size 1", jnp.matmul, (ints(1, 8), ints(8, 1))),
    Case("dot_general", "outer", _dot(((), ())), (ints(8), ints(8))),
    Case("dot_general", "odd sizes", jnp.matmul, (ints(3, 8), ints(8, 5))),
    Case(
        "dot_general",
        "wider result",
        _dot(((1,), (0,)), preferred_element_type=jnp.float32),
        (ints(8, 8, dtype=jnp.bfloat16),) * 2,
    ),
    Case(
        "dot_general",
        "integers",
        jnp.matmul,
        (ints(8, 8, dtype=np.int32), ints(8, 8, dtype=np.int32)),
    ),
    Case("dot_general", "size 0", jnp.matmul, (ints(8, 0), ints(0, 8))),
)

_X = ints(8, 4, 2)
REDUCTIONS = (
    *(
        Case(name, "middle dim", fun, (_X,))
        for name, fun in {
            "reduce_sum": lambda x: jnp.sum(x, 1),
            "reduce_max": lambda x: jnp.max(x, 1),
            "reduce_min": lambda x: jnp.min(x, 1),
            "reduce_prod": lambda x: jnp.prod(x, 1),
            "argmax": lambda x: lax.argmax(x, 1, np.int32),
            "argmin": lambda x: lax.argmin(x, 1, np.int32),
        }.items()
    ),
    Case("reduce_sum", "all dims", jnp.sum, (_X,)),
    Case(
        "reduce_sum",
        "no dims",
        lambda x: primitives.reduce_sum_p.bind(x, axes=(), out_sharding=None),
        (_X,),
    ),
    Case("reduce_sum", "integers", jnp.sum, (ints(8, 8, dtype=np.int32),)),
    Case("reduce_max", "two dims", lambda x: jnp.max(x, (0, 2)), (_X,)),
    Case("reduce_max", "integers", jnp.max, (ints(8, dtype=np.int32),)),
    Case("reduce_and", "first dim", lambda x: jnp.all(x, 0), (bools(8, 4),)),
    Case("reduce_or", "first dim", lambda x: jnp.any(x, 0), (bools(8, 4),)),
    Case(
        "reduce_xor",
        "first dim",
        lambda x: jnp.bitwise_xor.reduce(x, 0),
        (ints(8, 4, dtype=np.int32),),
    ),
    Case("argmax", "ties", lambda x: lax.argmax(x, 0, np.int32), (ints(8, 4, high=-4),)),
)

ALONG = (
    Case("cumsum", "middle dim", lambda x: lax.cumsum(x, 1), (_X,)),
    Case("cumsum", "reversed", lambda x: lax.cumsum(x, 0, reverse=True), (_X,)),
    Case("cumprod", "middle dim", lambda x: lax.cumprod(x, 1), (_X,)),
    Case("cummax", "middle dim", lambda x: lax.cummax(x, 1), (_X,)),
    Case("cummin", "middle dim", lambda x: lax.cummin(x, 1), (_X,)),
    Case("cumlogsumexp", "middle dim", lambda x: lax.cumlogsumexp(x, 1), (floats(8, 4),), _CLOSE),
    Case("sort", "one operand", lambda x: lax.sort(x, dimension=0), (ints(4, 8),)),
    Case(
        "sort", "two operands", lambda x, y: lax.sort((x, y), dimension=1), (ints(8, 4), ints(8, 4))
    ),
    Case("sort", "argsort", lambda x: jnp.argsort(x, axis=0), (ints(4, 8),)),
    Case("top_k", "last dim", lambda x: lax.top_k(x, 2), (ints(8, 4),)),
    Case("approx_top_k", "negative dim", lambda x: lax.approx_max_k(x, 2), (floats(8, 4),)),
    Case("fft", "last dim", jnp.fft.fft, (ints(8, 4, dtype=np.complex64),), _CLOSE),
    Case("fft", "real", jnp.fft.rfft, (ints(8, 8),), _CLOSE),
)


_M = floats(8, 3, 3)
_SPD = (_M @ _M.transpose(0, 2, 1) + np.eye(3, dtype=np.float32)).astype(np.float32)
_LOWER = np.tril(_M) + np.eye(3, dtype=np.float32)
LINEAR_ALGEBRA = (
    Case("cholesky", "batch", lax.linalg.cholesky, (_SPD,), _CLOSE),
    Case("eigh", "batch", lax.linalg.eigh, (_SPD,), _CLOSE),
    Case("eig", "batch", lax.linalg.eig, (_SPD,), _CLOSE),
    Case("lu", "batch", lax.linalg.lu, (_M,), _CLOSE),
    Case("qr", "batch", lax.linalg.qr, (_M,), _CLOSE),
    Case("svd", "batch", lax.linalg.svd, (_M,), _CLOSE),
    Case("schur", "batch", lax.linalg.schur, (_SPD,), _CLOSE),
    Case("hessenberg", "batch", lax.linalg.hessenberg, (_M,), _CLOSE),
    Case("tridiagonal", "batch", lambda x: lax.linalg.tridiagonal(x), (_SPD,), _CLOSE),
    Case(
        "householder_product", "batch", lax.linalg.householder_product, (_M, floats(8, 3)), _CLOSE
    ),
    Case(
        "triangular_solve",
        "batch",
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (_LOWER, ints(8, 3, 2)),
        _CLOSE,
    ),
    Case(
        "tridiagonal_solve",
        "batch",
        lambda d, b: lax.linalg.tridiagonal_solve(d, d + 4, d, b),
        (floats(8, 3), ints(8, 3, 2)),
        _CLOSE,
    ),
)

# Batched, this primitive draws from one state for all: only real devices tell the truth.
ON_DEVICES = (
    Case(
        "rng_bit_generator",
        "threefry",
        lambda k: lax.rng_bit_generator(k, (8,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
        (np.arange(4, dtype=np.uint32),),
    ),
)

CASES = (*DOTS, *REDUCTIONS, *ALONG, *LINEAR_ALGEBRA)
