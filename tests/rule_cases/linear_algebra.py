"""Rarer decompositions and their parts, in batches of matrices."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rule_cases.case import Case, floats, ints

_CLOSE = 1e-4
_M = floats(8, 3, 3)
_SQUARES = _M @ _M.transpose(0, 2, 1) + np.eye(3, dtype=np.float32)
_UPPER = np.linalg.cholesky(_SQUARES).transpose(0, 2, 1).astype(np.float32)


def _raw_qr(x: Any) -> Any:
    return lax.linalg.qr(x, pivoting=False)


CASES = (
    Case(
        "lu_pivots_to_permutation",
        "batch",
        lambda p: lax.linalg.lu_pivots_to_permutation(p, 4),
        (np.tile(np.array([2, 1, 3], np.int32), (8, 1)),),
    ),
    Case(
        "symmetric_product",
        "batch",
        lambda a, c: lax.linalg.symmetric_product(a, c, alpha=2.0, beta=1.0),
        (ints(8, 3, 2), ints(8, 3, 3) + ints(8, 3, 3).transpose(0, 2, 1)),
    ),
    Case("geqrf", "batch", lambda a: jnp.linalg.qr(a, mode="raw"), (_M,), _CLOSE),
    Case("ormqr", "batch", lax.linalg.ormqr, (_M, floats(8, 3), ints(8, 3, 2)), _CLOSE),
    Case("svd", "two batch dims", lax.linalg.svd, (_M.reshape(2, 4, 3, 3),), _CLOSE),
    Case("qr", "tall", _raw_qr, (floats(8, 4, 2),), _CLOSE),
    Case("cholesky", "one matrix", lax.linalg.cholesky, (_SQUARES[0],), _CLOSE),
)

# Has no batch dims.
ON_DEVICES = (
    Case(
        "cholesky_update",
        "one matrix",
        lax.linalg.cholesky_update_p.bind,
        (_UPPER[0], floats(3)),
        _CLOSE,
    ),
)
