"""Primitives that run whole; those that read the platform or a state of the backend."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import primitives

from rule_cases.case import Case


def _empty(x: Any) -> Any:
    # Nothing says what is in it.
    return lax.empty((8, 4), np.float32) * 0 + x


def _uninitialised(x: Any) -> Any:
    space = jax.typeof(x).memory_space
    return primitives.empty2_p.bind(dtype=np.dtype(np.float32), memory_space=space)


def _shown(x: Any) -> Any:
    jax.debug.callback(lambda _: None, x)
    return x * 2


def _on_host(x: Any) -> Any:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.sin, like, x, vmap_method="expand_dims")


ON_DEVICES = (
    Case("host_call", "for its effect", _shown, (np.ones((8, 4), np.float32),)),
    Case("pure_callback", "2-D", _on_host, (np.ones((8, 4), np.float32),)),
    Case("rng_uniform", "an empty range", lambda a: lax.rng_uniform(a, a, (8,)), (np.float32(2),)),
    Case("empty", "2-D", _empty, (np.float32(2),)),
    Case(
        "empty2",
        "scalar",
        lambda x: _uninitialised(x) * 0 + x,
        (np.float32(2),),
    ),
    Case(
        "platform_index",
        "two",
        lambda x: lax.platform_dependent(x, cpu=lambda y: y + 1, default=lambda y: y - 1),
        (np.float32(2),),
    ),
)
