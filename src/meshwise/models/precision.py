"""Dtypes of a model: what computes, what is kept, what must be wide."""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp


class Dtypes(Protocol):
    """The part of a model's configuration that names its dtypes."""

    @property
    def dtype(self) -> str:
        """Dtype of the computation."""
        ...

    @property
    def param_dtype(self) -> str:
        """Dtype of the parameters."""
        ...


def wide_dtype(config: Dtypes) -> jnp.dtype:
    """Return the dtype of softmax, norms and losses: the wider of the two, at least float32."""
    return jnp.promote_types(jnp.promote_types(config.dtype, config.param_dtype), jnp.float32)


def module_dtypes(config: Dtypes) -> dict[str, Any]:
    """Return the two dtypes as keyword arguments of a Flax module."""
    return {"dtype": config.dtype, "param_dtype": config.param_dtype}
