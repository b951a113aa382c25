"""The values of a random program while it is built, and how operations draw their operands.

Floats are small integers, so that sums are exact in any order and neither sorts nor comparisons
flip: every float that enters the pool is rounded to the grid and clipped, with the gradient of the
clip.
"""

from __future__ import annotations

import math
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LIMIT = 8
MAX_ELEMENTS = 256
DIMS = (0, 1, 1, 2, 3, 4, 4, 8, 8, 8, 16)
# Halves are exact and common: they must not lie between two points of the grid.
_SHIFT = 0.1234


@jax.custom_jvp
def on_grid(x: jax.Array) -> jax.Array:
    """The integer near a value, from -LIMIT to LIMIT."""
    return jnp.round(jnp.clip(jnp.nan_to_num(x), -LIMIT, LIMIT) + _SHIFT)


@on_grid.defjvp
def _on_grid_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    # Kept small: products of many of them would drown all else.
    return on_grid(x), jnp.where(jnp.abs(x) <= LIMIT, t / 2, 0.0)


class Pool:
    """Values so far and the source of chance; lives for one trace.

    Attributes:
        rng: Draws operands and attributes; seeded anew for each operation.
        values: Floats on the grid, int32 and booleans, of any shape.
    """

    def __init__(self, values: list[jax.Array], key: jax.Array) -> None:
        self.rng = random.Random(0)
        self.values = list(values)
        self._key = key

    def key(self) -> jax.Array:
        """A fresh key."""
        self._key, now = jax.random.split(self._key)
        return now

    def add(self, value: Any) -> None:
        """Take in a result: complex as two, other types as one of the three."""
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            self.add(jnp.real(value))
            value = jnp.imag(value)
        if jnp.issubdtype(value.dtype, jnp.floating):
            value = on_grid(value.astype(jnp.float64))
        elif value.dtype not in (jnp.bool_, jnp.int32):
            value = (value % 16).astype(jnp.int32)
        elif value.dtype == jnp.int32:
            value = value % 16
        if value.size <= MAX_ELEMENTS:
            self.values.append(value)
        else:
            self.values.append(value.reshape(-1)[:MAX_ELEMENTS])

    def _of(self, dtype: Any) -> list[jax.Array]:
        return [value for value in self.values if value.dtype == dtype]

    def float(self, min_rank: int = 0) -> jax.Array:
        """Any float value of the pool; a new dim of size 1 where the rank is too low."""
        return self._some(jnp.float64, min_rank)

    def int(self, min_rank: int = 0) -> jax.Array:
        """Any integer value."""
        return self._some(jnp.int32, min_rank)

    def bool(self, min_rank: int = 0) -> jax.Array:
        """Any boolean value."""
        return self._some(jnp.bool_, min_rank)

    def _some(self, dtype: Any, min_rank: int) -> jax.Array:
        # The latest values first, so that programs are deep and not only wide.
        found = self._of(dtype)
        value = self.rng.choice(found[-3:] if self.rng.random() < 0.7 else found)
        while value.ndim < min_rank:
            value = value[..., None]
        return value

    def floats(self, *shape: int) -> jax.Array:
        """A float of a shape, made of a value of the pool."""
        return _shaped(self.float(), shape)

    def ints(self, *shape: int, low: int = 0, high: int = 8) -> jax.Array:
        """Integers of a shape in a range."""
        return _shaped(self.int(), shape) % (high - low) + low

    def bools(self, *shape: int) -> jax.Array:
        """Booleans of a shape."""
        return _shaped(self.bool(), shape)

    def like(self, value: jax.Array) -> jax.Array:
        """Another float of the shape of a value: one there is, or made."""
        same = [v for v in self._of(jnp.float64) if v.shape == value.shape]
        return self.rng.choice(same) if same else self.floats(*value.shape)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A small shape, dims of size 0 and 1 included."""
        rank = self.rng.randint(0, 3) if rank is None else rank
        drawn = tuple(self.rng.choice(DIMS) for _ in range(rank))
        while math.prod(drawn) > MAX_ELEMENTS:
            drawn = drawn[1:]
        return drawn

    def dim(self, value: jax.Array) -> int:
        """A dim of a value of rank 1 or more."""
        return self.rng.randrange(value.ndim)


def _shaped(value: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    if value.size == 0:
        return jnp.zeros(shape, value.dtype)
    flat = jnp.tile(value.reshape(-1), -(-size // value.size))[:size]
    return flat.reshape(shape)


def spd(pool: Pool, count: int, size: int) -> jax.Array:
    """Positive definite matrices with eigenvalues that are well apart."""
    lower = jnp.tril(pool.floats(count, size, size), -1) / (4 * LIMIT)
    diagonal = jnp.diag(jnp.asarray(np.arange(1.0, size + 1)))
    return diagonal + lower + jnp.swapaxes(lower, 1, 2)
