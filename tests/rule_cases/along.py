"""More of what works along a dim: reversed, several keys, every kind of transform."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from rule_cases.case import Case, floats, ints

_CLOSE = 1e-4
_COMPLEX = ints(8, 4, 4, dtype=np.complex64)

CASES = (
    *(
        Case(name, "reversed", lambda x, f=fun: f(x, 1, reverse=True), (ints(8, 4, 2),))
        for name, fun in {
            "cumprod": lax.cumprod,
            "cummax": lax.cummax,
            "cummin": lax.cummin,
        }.items()
    ),
    Case(
        "cumlogsumexp",
        "reversed",
        lambda x: lax.cumlogsumexp(x, 1, reverse=True),
        (floats(8, 4),),
        _CLOSE,
    ),
    Case(
        "sort",
        "two keys of three operands",
        lambda x, y, z: lax.sort((x, y, z), dimension=1, num_keys=2),
        (ints(8, 6, high=-3), ints(8, 6, high=-2), ints(8, 6)),
    ),
    Case(
        "sort",
        "integers, first dim",
        lambda x, y: lax.sort((x, y), dimension=0, is_stable=True, num_keys=1),
        (ints(6, 8, dtype=np.int32, high=-3), ints(6, 8)),
    ),
    Case("top_k", "integers", lambda x: lax.top_k(x, 3), (ints(8, 2, 6, dtype=np.int32),)),
    Case("top_k", "first dim", lambda x: lax.top_k(x, 3, axis=0), (ints(6, 8),)),
    Case(
        "approx_top_k",
        "smallest, first dim",
        lambda x: lax.approx_min_k(x, 2, reduction_dimension=0),
        (floats(4, 8),),
    ),
    Case("argmin", "last dim", lambda x: lax.argmin(x, 2, np.int32), (ints(8, 2, 4),)),
    Case("fft", "inverse", jnp.fft.ifft, (_COMPLEX,), _CLOSE),
    Case("fft", "two dims", jnp.fft.fft2, (_COMPLEX,), _CLOSE),
    Case("fft", "inverse real", jnp.fft.irfft, (_COMPLEX,), _CLOSE),
    Case("fft", "real, two dims", jnp.fft.rfft2, (ints(8, 4, 4),), _CLOSE),
    Case(
        "reduce_precision", "to bfloat16", lambda x: lax.reduce_precision(x, 8, 7), (floats(8, 4),)
    ),
)

# Under `vmap` the initial values would have a batch dim, for which JAX has no rule.
ON_DEVICES = (
    Case(
        "reduce",
        "several operands",
        lambda x, y: lax.reduce(
            (x, y),
            (np.float32(0), np.float32(1)),
            lambda a, b: (a[0] + b[0], a[1] * b[1]),
            (1,),
        ),
        (ints(8, 4, 2), ints(8, 4, 2)),
    ),
)
