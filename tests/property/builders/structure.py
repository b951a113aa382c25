"""Operations that move, join, cut, index, sort and reduce values of the pool."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from property.builders.elementwise import Builder
from property.pool import Pool


def broadcast(pool: Pool) -> Any:
    """New dims, and dims of size 1 stretched."""
    x = pool.float(1)
    row = x[..., :1]
    return jnp.broadcast_to(row, (2, *row.shape[:-1], 3 if row.shape[-1] else 0))


def reshape(pool: Pool) -> Any:
    """Dims merged and cut again."""
    x = pool.float(1)
    flat = x.reshape(-1)
    divisors = [d for d in (1, 2, 3, 4, 8, 16) if flat.size % d == 0]
    first = pool.rng.choice(divisors)
    return x.reshape(first, -1) if flat.size else x.reshape(0, first)


def transpose(pool: Pool) -> Any:
    """Dims in another order."""
    x = pool.float(2)
    order = list(range(x.ndim))
    pool.rng.shuffle(order)
    return x.transpose(order)


def squeeze(pool: Pool) -> Any:
    """A dim of size 1 made and taken away."""
    x = pool.float()
    return jnp.squeeze(lax.expand_dims(x, (0,)) + 1.0, 0)


def rev(pool: Pool) -> Any:
    """A dim in reverse."""
    x = pool.float(1)
    return lax.rev(x, (pool.dim(x),))


def iota(pool: Pool) -> Any:
    """Counts along a dim, as floats or integers."""
    shape = pool.shape(2)
    dtype = pool.rng.choice([jnp.int32, jnp.float64])
    return lax.broadcasted_iota(dtype, shape, pool.rng.randrange(2))


def tile(pool: Pool) -> Any:
    """Repeated along every dim."""
    x = pool.float(1)
    return lax.tile(x, [pool.rng.randint(1, 2) for _ in x.shape])


def stack(pool: Pool) -> Any:
    """Two values in a new dim."""
    x = pool.float()
    return jnp.stack([x, pool.like(x)], axis=pool.rng.randint(0, x.ndim))


def unstack(pool: Pool) -> Any:
    """A dim taken apart."""
    x = pool.floats(4, 3, 2)
    first, *_, last = jnp.unstack(x, axis=pool.dim(x))
    return first - last


def split(pool: Pool) -> Any:
    """Cut into two and one of them taken."""
    x = pool.float(1)
    dim = pool.dim(x)
    left, right = lax.split(x, (x.shape[dim] // 2, x.shape[dim] - x.shape[dim] // 2), dim)
    return pool.rng.choice([left, right])


def concatenate(pool: Pool) -> Any:
    """Joined along a dim."""
    x = pool.float(1)
    return jnp.concatenate([x, 2 * pool.like(x)], axis=pool.dim(x))


def pad(pool: Pool) -> Any:
    """Before, after, between; or cut at an edge."""
    x = pool.float(1)
    config = [(0, 0, 0)] * x.ndim
    config[pool.dim(x)] = pool.rng.choice([(1, 2, 0), (0, 0, 1), (2, -1, 0)])
    shrinks = any(
        low + size + high < 0 for (low, high, _), size in zip(config, x.shape, strict=True)
    )
    return x if shrinks else lax.pad(x, lax.stop_gradient(pool.floats()), config)


def cut(pool: Pool) -> Any:
    """A slice with a stride."""
    x = pool.float(1)
    dim = pool.dim(x)
    return lax.slice_in_dim(x, x.shape[dim] // 4, x.shape[dim], pool.rng.randint(1, 2), dim)


def dynamic_cut(pool: Pool) -> Any:
    """A slice at a place that the data say, one element or more."""
    x = pool.float(1)
    dim = pool.dim(x)
    size = min(x.shape[dim], pool.rng.choice([1, 1, 3]))
    return lax.dynamic_slice_in_dim(x, pool.ints(low=-3, high=20), size, dim)


def dynamic_write(pool: Pool) -> Any:
    """An update at a place that the data say."""
    x = pool.float(1)
    dim = pool.dim(x)
    shape = list(x.shape)
    shape[dim] = min(shape[dim], pool.rng.choice([1, 1, 3]))
    return lax.dynamic_update_slice_in_dim(x, pool.floats(*shape), pool.ints(low=-3, high=20), dim)


def lookup(pool: Pool) -> Any:
    """Rows by number, in range or not."""
    x = pool.float(1)
    mode = pool.rng.choice(["fill", "clip", "promise_in_bounds"])
    if not x.shape[0]:
        return x
    bounds = (0, x.shape[0]) if mode == "promise_in_bounds" else (-3, 20)
    index = pool.ints(*pool.shape(pool.rng.randint(0, 1)), low=bounds[0], high=bounds[1])
    return x.at[index].get(mode=mode, fill_value=0)


def along(pool: Pool) -> Any:
    """One element of each row."""
    x = pool.floats(8, 4)
    return jnp.take_along_axis(x, pool.ints(8, 1, high=4), 1)


def scatter(pool: Pool) -> Any:
    """Rows updated by number, several times the same one."""
    x = pool.float(1)
    how = pool.rng.choice(["add", "subtract", "multiply", "min", "max"])
    index = pool.ints(*pool.shape(1), low=-3, high=20)
    update = pool.floats(*index.shape, *x.shape[1:])
    target = x.at[index]
    if how == "multiply":  # the gradient wants each row at most once
        fixed = lax.stop_gradient(x).at[index]
        return fixed.multiply(lax.stop_gradient(update)) + x
    return getattr(target, how)(update)


def scatter_set(pool: Pool) -> Any:
    """Rows set by number, each once; or one row at a place that the data say."""
    x = pool.floats(8, 4)
    if pool.rng.random() < 0.5:
        return x.at[pool.ints(low=-9, high=12)].set(pool.floats(4))
    index = jnp.argsort(pool.ints(8), stable=True)
    return x.at[index, 1].set(pool.floats(8))


def scatter_rows(pool: Pool) -> Any:
    """One element of each row changed."""
    x = pool.floats(8, 4)
    return x.at[jnp.arange(8), pool.ints(8, high=4)].add(pool.floats(8))


def reduce(pool: Pool) -> Any:
    """A sum or its like over some dims."""
    x = pool.float(1)
    axes = tuple(d for d in range(x.ndim) if pool.rng.random() < 0.6) or (0,)
    how = pool.rng.choice([jnp.sum, jnp.mean, jnp.max, jnp.min, jnp.prod])
    if how is jnp.prod:
        return how(jnp.sign(x), axes)
    if how is jnp.sum or how is jnp.mean or all(x.shape[d] for d in axes):
        return how(x, axes)
    return x


def reduce_others(pool: Pool) -> Any:
    """Reductions of booleans and integers, and with a function of our own."""
    how = pool.rng.randrange(5)
    if how == 0:
        return jnp.all(pool.bool(1), 0)
    if how == 1:
        return jnp.any(pool.bool(1), -1)
    if how == 2:
        return jnp.bitwise_xor.reduce(pool.int(1), 0)
    if how == 3:
        return jnp.max(pool.int(1), 0, initial=0)
    return lax.stop_gradient(
        lax.reduce(pool.int(1), jnp.int32(1), lambda a, b: (a * b + a) % 7 * 0 + a + b, (0,))
    )


def arg(pool: Pool) -> Any:
    """The place of the largest or smallest element."""
    x = pool.float(1)
    dim = pool.dim(x)
    how = pool.rng.choice([lax.argmax, lax.argmin])
    return how(x, dim, jnp.int32) if x.shape[dim] else x


def cumulate(pool: Pool) -> Any:
    """Sums and their like of what comes before, as they are and differentiated."""
    x = pool.float(1)
    how = pool.rng.choice([lax.cumsum, lax.cummax, lax.cummin, lax.cumprod, lax.cumlogsumexp])
    operand = jnp.sign(x) if how is lax.cumprod else x
    dim, reverse = pool.dim(x), pool.rng.random() < 0.5
    # JAX differentiates most of these as scans by halves, which it cannot without elements.
    plain = how(lax.stop_gradient(operand), dim, reverse=reverse)
    return plain if 0 in x.shape else plain + how(operand, dim, reverse=reverse)


def sort(pool: Pool) -> Any:
    """Sorted by one or two keys, other values along."""
    x = pool.float(1)
    dim = pool.dim(x)
    keys = pool.ints(*x.shape)
    how = pool.rng.randrange(3)
    if how == 0:
        return lax.sort(x, dimension=dim)
    if how == 1:
        return lax.sort((keys, x), dimension=dim, is_stable=True, num_keys=1)[1]
    return lax.sort((keys, x, pool.like(x)), dimension=dim, is_stable=True, num_keys=2)[2]


def top(pool: Pool) -> Any:
    """The largest few, exact or approximate."""
    x = pool.floats(4, 8)
    if pool.rng.random() < 0.5:
        return lax.top_k(x, 3)[pool.rng.randrange(2)]
    return lax.approx_max_k(x, 2)[0]


def bits(pool: Pool) -> Any:
    """Integers as bytes."""
    return lax.bitcast_convert_type(pool.int(), jnp.int16)


def key_moves(pool: Pool) -> Any:
    """Keys moved and looked up as any values are."""
    keys = jax.random.split(pool.key(), (4, 2))
    chosen = keys.T[1][pool.ints(3, high=4)]
    return jax.vmap(lambda k: jax.random.randint(k, (4,), 0, 9))(chosen)


TABLE: dict[str, Builder] = {
    fun.__name__: fun
    for fun in (
        *(broadcast, reshape, transpose, squeeze, rev, iota, tile, stack, unstack, split),
        *(concatenate, pad, cut, dynamic_cut, dynamic_write, lookup, along, scatter, scatter_set),
        *(scatter_rows, reduce, reduce_others, arg, cumulate, sort, top, bits, key_moves),
    )
}
