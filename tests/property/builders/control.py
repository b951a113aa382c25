"""Random numbers, loops, branches and calls on values of the pool."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from property.builders.elementwise import Builder
from property.pool import Pool, spd


def dropout(pool: Pool) -> Any:
    """A mask of random bits."""
    x = pool.float()
    return jnp.where(jax.random.bernoulli(pool.key(), 0.7, x.shape), x, 0.0)


def noise(pool: Pool) -> Any:
    """Random numbers of several kinds."""
    shape, key = pool.shape(), pool.key()
    how = pool.rng.randrange(3)
    if how == 0:
        return jax.random.randint(key, shape, 0, 9)
    if how == 1:
        return 4 * jax.random.uniform(jax.random.fold_in(key, pool.ints()), shape)
    return 4 * jax.random.normal(jax.random.clone(key), shape)


def gamma(pool: Pool) -> Any:
    """A draw by rejection."""
    return lax.stop_gradient(jax.random.gamma(pool.key(), jnp.abs(pool.floats(4)) + 1))


def keys(pool: Pool) -> Any:
    """Keys from words and from seeds."""
    words = jax.random.key_data(pool.key())
    again = jax.random.fold_in(jax.random.wrap_key_data(words), 3)
    other = jax.random.key(pool.ints())
    return jax.random.bits(again, (4,)) ^ jax.random.bits(other, (4,))


def scan(pool: Pool) -> Any:
    """A carry, rows of a stack, results of each turn; forward or in reverse."""
    x, stack = pool.floats(4, 8), pool.floats(3, 8)
    key = pool.key()

    def turn(carry: Any, row: Any) -> Any:
        h, key = carry
        key, now = jax.random.split(key)
        h = jnp.clip(h * row, -8, 8) + jax.random.bernoulli(now, 0.5, h.shape)
        return (h, key), h.sum(-1)

    (h, _), sums = lax.scan(turn, (x, key), stack, reverse=pool.rng.random() < 0.5)
    return pool.rng.choice([h, sums])


def scan_of_nothing(pool: Pool) -> Any:
    """No turns at all."""
    rows = pool.floats(0, 4)
    return lax.scan(lambda c, r: (c + r, r), pool.floats(4), rows)[0]


def nested_scan(pool: Pool) -> Any:
    """A loop in a loop, the inner one with constants from outside."""
    x, w = pool.floats(4, 4), pool.floats(4, 4)

    def inner(c: Any, row: Any) -> Any:
        return jnp.clip(c @ w, -8, 8) + row, None

    def outer(c: Any, row: Any) -> Any:
        return lax.scan(inner, c, w * row.sum())[0], c.max()

    c, largest = lax.scan(outer, x, pool.floats(2, 3))
    return pool.rng.choice([c, largest])


def cond(pool: Pool) -> Any:
    """One of two branches."""
    x, w = pool.floats(8, 4), pool.floats(4, 8)
    return lax.cond(pool.bools(), lambda v: (v @ w) / 4, lambda v: jnp.tile(v - 1, (1, 2)), x)


def switch(pool: Pool) -> Any:
    """One of three branches; the number may be out of range."""
    x = pool.float()
    branches = (lambda v: v + 1, lambda v: v * 2, lambda v: v - v.sum())
    return lax.switch(pool.ints(low=-2, high=5), branches, x)


def while_loop(pool: Pool) -> Any:
    """As many turns as the data say, without a gradient."""
    x, w = lax.stop_gradient(pool.floats(4, 8)), lax.stop_gradient(pool.floats(8))

    def goes_on(carry: Any) -> Any:
        count, h = carry
        return (count < 5) & (h.max() < 20)

    def turn(carry: Any) -> Any:
        count, h = carry
        return count + 1, h + jnp.abs(w) + 1

    return lax.while_loop(goes_on, turn, (pool.ints(high=3), x))[1]


def fori_loop(pool: Pool) -> Any:
    """A fixed number of turns, with a gradient."""
    w = pool.floats(4, 4)
    return lax.fori_loop(0, 3, lambda i, h: jnp.clip(h @ w, -8, 8) + i, pool.floats(8, 4))


def linear_solve(pool: Pool) -> Any:
    """A linear system with a solver of our own, differentiated through its transpose."""
    matrix, right = spd(pool, 1, 4)[0], pool.floats(4, 2)
    inverse = jnp.linalg.inv(lax.stop_gradient(matrix))
    return lax.custom_linear_solve(
        lambda v: matrix @ v,
        right,
        lambda _, b: inverse @ b,
        lambda _, b: inverse.T @ b,
    )


def remat(pool: Pool) -> Any:
    """Computed again in the backward pass."""
    w = pool.floats(4, 4)
    return jax.checkpoint(lambda v: jnp.clip(jnp.tanh(v @ w) * 4, -8, 8))(pool.floats(8, 4))


def mapped(pool: Pool) -> Any:
    """A function of one row, for all rows."""
    w = pool.floats(4, 2)
    return jax.vmap(lambda v: jnp.outer(v @ w, v).sum(0) / 4)(pool.floats(8, 4))


def jitted(pool: Pool) -> Any:
    """A call in a call."""
    x = pool.float()
    return jax.jit(lambda v: jax.jit(jnp.negative)(v) + 1)(x)


def constrained(pool: Pool) -> Any:
    """A gradient through a constraint for a mesh of one device, which is not carried along."""
    mesh = jax.make_mesh((1,), ("one",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    square = lambda v: (lax.with_sharding_constraint(v, spec) ** 2).sum()  # noqa: E731
    return jax.grad(square)(pool.float())


def generator(pool: Pool) -> Any:
    """A generator with a state."""
    state = pool.ints(4).astype(jnp.uint32)
    how = lax.RandomAlgorithm.RNG_THREE_FRY
    return lax.rng_bit_generator(state, pool.shape(1), algorithm=how)[1]


def uniform(pool: Pool) -> Any:
    """A stateful draw from an empty range."""
    low = lax.stop_gradient(pool.floats())
    return lax.rng_uniform(low, low, (4,))


def empty(pool: Pool) -> Any:
    """Values that nobody reads."""
    unread = lax.empty(pool.shape(2), jnp.float64)
    space = jax.typeof(pool.floats()).memory_space
    nothing = primitives.empty2_p.bind(dtype=jnp.dtype(jnp.float64), memory_space=space)
    return jnp.where(jnp.zeros(unread.shape, bool), unread + nothing, 2.0)


def platform(pool: Pool) -> Any:
    """A branch by platform."""
    return lax.platform_dependent(
        pool.float(), cpu=lambda v: v + 1, cuda=lambda v: v + 1, default=lambda v: v - 1
    )


TABLE: dict[str, Builder] = {
    fun.__name__: fun
    for fun in (
        *(dropout, noise, gamma, keys, scan, scan_of_nothing, nested_scan, cond, switch),
        *(fori_loop, linear_solve, remat, mapped, jitted),
    )
}
# Under `vmap` these mean something else, or JAX has no rule for them; a loop runs as long as the
# row that needs most turns, which no micro-batch knows.
PLAIN_ONLY: dict[str, Builder] = {
    fun.__name__: fun for fun in (constrained, generator, uniform, empty, platform, while_loop)
}
