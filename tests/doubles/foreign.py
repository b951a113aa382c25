"""Primitives of someone else, without a rule: one opaque, one that is made of JAX's operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

# Its parameters name the size of its result; without a compiler it runs in NumPy.
scale_p = Primitive("someone_elses_scale")
scale_p.def_impl(lambda x, *, shape: np.asarray(x) * 2.0)
scale_p.def_abstract_eval(lambda x, *, shape: core.ShapedArray(shape, x.dtype))
mlir.register_lowering(scale_p, mlir.lower_fun(lambda x, *, shape: x * 2.0, multiple_results=False))
ad.deflinear2(scale_p, lambda cotangent, x, *, shape: [scale(cotangent)])


def scale(x: Any) -> jax.Array:
    """Twice a value."""
    return scale_p.bind(x, shape=x.shape)


mean_p = Primitive("someone_elses_mean")
mean_p.def_impl(lambda x, *, dim: jnp.mean(x, dim))
# It promises a weak type and gives none, as solvers of Lineax do.
mean_p.def_abstract_eval(
    lambda x, *, dim: core.ShapedArray(x.shape[:dim] + x.shape[dim + 1 :], x.dtype, weak_type=True)
)
mlir.register_lowering(
    mean_p, mlir.lower_fun(lambda x, *, dim: jnp.mean(x, dim), multiple_results=False)
)


def mean(x: Any, dim: int) -> jax.Array:
    """The mean along a dim."""
    return mean_p.bind(x, dim=dim)
