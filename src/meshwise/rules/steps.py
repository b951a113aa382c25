"""Steps of operators that were put together: constants and element-wise operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive


@dataclass(frozen=True, slots=True)
class Number:
    """A constant.

    Attributes:
        value: A Python number.
        dtype: NumPy-style name.
    """

    value: complex | bool
    dtype: str

    def made(self) -> Array:
        """Return it as an array without dims."""
        return jnp.asarray(self.value, self.dtype)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """An element-wise operation.

    Attributes:
        primitive: The primitive.
        params: Its parameters, as pairs.
        inputs: Numbers of the values that it takes, as its owner counts them.
    """

    primitive: Primitive
    params: tuple[tuple[str, Any], ...]
    inputs: tuple[int, ...]

    def made(self, values: Sequence[Array]) -> Array:
        """Return its result.

        Args:
            values: All values by number.
        """
        operands = jnp.broadcast_arrays(*(values[i] for i in self.inputs))
        return self.primitive.bind(*operands, **dict(self.params))
