"""Reductions over micro-batches: their neutral elements, and how two terms combine."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from meshwise.graph.layout import SUM


def identity_of(monoid: str, dtype: DTypeLike) -> ArrayLike:
    """Return the neutral element of a reduction.

    Args:
        monoid: The reduction.
        dtype: The type of what is reduced.

    Returns:
        The element, a scalar.
    """
    if monoid == SUM:
        return np.zeros((), dtype)[()]
    if monoid in ("and", "or"):
        return np.asarray(monoid == "and", dtype)[()]
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf if monoid == "max" else np.inf, dtype)[()]
    if dtype == jnp.bool_:
        return np.asarray(monoid == "min", dtype)[()]
    info = jnp.iinfo(dtype)
    return np.asarray(info.min if monoid == "max" else info.max, dtype)[()]


def combine(monoid: str, left: Array, right: Array) -> Array:
    """One step of a reduction."""
    match monoid:
        case "sum":
            return left + right
        case "max":
            return jnp.maximum(left, right)
        case "min":
            return jnp.minimum(left, right)
        case "and":
            return left & right
        case _:
            return left | right
