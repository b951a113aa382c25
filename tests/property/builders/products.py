"""Products, convolutions, windows, transforms, linear algebra on values of the pool."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import meshwise as mw
from property.builders.elementwise import Builder
from property.pool import LIMIT, Pool, spd


def dot(pool: Pool) -> Any:
    """Any batch, free and contracted dims."""
    batch, free, contracted = (pool.shape(pool.rng.randint(0, 1)) for _ in range(3))
    left = pool.floats(*batch, *free, *contracted)
    right = pool.floats(*batch, *contracted, pool.rng.choice([1, 4, 8]))
    numbers = (
        tuple(range(len(batch) + len(free), left.ndim)),
        tuple(range(len(batch), len(batch) + len(contracted))),
    )
    same = tuple(range(len(batch)))
    return lax.dot_general(left, right, (numbers, (same, same))) / 4


def integer_dot(pool: Pool) -> Any:
    """A product of integers."""
    return pool.ints(4, 8) @ pool.ints(8, 2)


def ragged(pool: Pool) -> Any:
    """Rows in groups; groups may be empty."""
    sizes = pool.ints(3, high=3)
    return lax.ragged_dot(pool.floats(8, 4), pool.floats(3, 4, 2), sizes)


def convolution(pool: Pool) -> Any:
    """Strides, paddings, holes, groups."""
    groups = pool.rng.choice([1, 1, 2])
    return lax.conv_general_dilated(
        pool.floats(2, 4, 8),
        pool.floats(4, 4 // groups, 3),
        (pool.rng.randint(1, 2),),
        pool.rng.choice(["SAME", "VALID"]),
        rhs_dilation=(pool.rng.randint(1, 2),),
        feature_group_count=groups,
    )


def window(pool: Pool) -> Any:
    """The largest, the smallest or the sum in each window."""
    x = pool.floats(4, 8)
    how = pool.rng.choice([(-jnp.inf, lax.max), (jnp.inf, lax.min), (0.0, lax.add)])
    sizes = pool.rng.choice([(1, 2), (2, 2), (1, 3)])
    strides = pool.rng.choice([sizes, (1, 1)])
    return lax.reduce_window(x, *how, sizes, strides, pool.rng.choice(["SAME", "VALID"]))


def window_tangent(pool: Pool) -> Any:
    """A tangent of window maxima: the element where the maximum is."""
    x = lax.stop_gradient(pool.floats(4, 8) + jnp.arange(8) / 16)
    largest = lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")  # noqa: E731
    return jax.jvp(largest, (x,), (lax.stop_gradient(pool.floats(4, 8)),))[1]


def fft(pool: Pool) -> Any:
    """A transform of complex or real values, forth and back."""
    x = pool.floats(4, 8)
    how = pool.rng.randrange(4)
    if how == 0:
        return jnp.fft.fft(x) / 4
    if how == 1:
        return jnp.fft.ifft2(x + 1j * pool.floats(4, 8))
    if how == 2:
        return jnp.fft.irfft(x + 0j)
    return jnp.fft.rfft(x) / 4


def decomposition(pool: Pool) -> Any:
    """A decomposition of well-behaved matrices, without a gradient."""
    a = lax.stop_gradient(spd(pool, 4, 3))
    kinds = (
        lambda: jnp.linalg.eigvalsh(a),
        lambda: jnp.abs(lax.linalg.eig(a)[0]).sum(-1),
        lambda: lax.linalg.hessenberg(a)[0],
        lambda: jnp.abs(lax.linalg.schur(a)[0]).sum((-1, -2)),
        lambda: lax.linalg.svd(a, compute_uv=False),
        lambda: lax.linalg.tridiagonal(a)[1],
        lambda: lax.linalg.symmetric_product(a, a),
    )
    return pool.rng.choice(kinds)()


def factors(pool: Pool) -> Any:
    """A decomposition with a gradient."""
    a = spd(pool, 4, 3)
    kinds = (
        lambda: lax.linalg.cholesky(a),
        lambda: lax.linalg.lu(a)[0],
        lambda: jnp.abs(lax.linalg.qr(a, full_matrices=False)[1]),
    )
    return pool.rng.choice(kinds)()


def pivots(pool: Pool) -> Any:
    """The permutation that row swaps make."""
    swaps = jnp.maximum(pool.ints(4, 3, high=4), jnp.arange(3, dtype=jnp.int32))
    return lax.linalg.lu_pivots_to_permutation(swaps, 4)


def reflectors(pool: Pool) -> Any:
    """Householder vectors, made, multiplied out and applied."""
    a = lax.stop_gradient(spd(pool, 4, 3))
    raw, taus = jnp.linalg.qr(a, mode="raw")
    vectors = jnp.swapaxes(raw, -1, -2)
    if pool.rng.random() < 0.5:
        return lax.linalg.householder_product(vectors, taus)
    return lax.linalg.ormqr(vectors, taus, lax.stop_gradient(pool.floats(4, 3, 2)))


def solve(pool: Pool) -> Any:
    """Systems with triangular or tridiagonal matrices."""
    if pool.rng.random() < 0.5:
        return lax.linalg.triangular_solve(spd(pool, 4, 3), pool.floats(4, 3, 2), left_side=True)
    off = pool.floats(4, 3) / (4 * LIMIT)
    return lax.linalg.tridiagonal_solve(off, 2 + off, off, pool.floats(4, 3, 2))


@mw.sharded_kernel(loops="ak,kb->ab", sum="k")
def _product(x: Any, y: Any) -> Any:
    return x @ y


@jax.custom_vjp
def _kernel(x: jax.Array, y: jax.Array) -> jax.Array:
    return _product(x, y)


_kernel.defvjp(
    lambda x, y: (_product(x, y), (x, y)),
    lambda saved, g: (_product(g, saved[1].T), _product(saved[0].T, g)),
)


def kernel(pool: Pool) -> Any:
    """An opaque kernel with a backward pass of its own."""
    return _kernel(pool.floats(8, 4), pool.floats(4, 8)) / 4


def cholesky_update(pool: Pool) -> Any:
    """One matrix, without a batch."""
    upper = jnp.asarray(np.triu(np.ones((3, 3))) + np.eye(3))
    return lax.linalg.cholesky_update(upper, lax.stop_gradient(pool.floats(3)))


TABLE: dict[str, Builder] = {
    fun.__name__: fun
    for fun in (
        *(dot, integer_dot, convolution, window, window_tangent, fft, decomposition, factors),
        *(pivots, reflectors, kernel),
    )
}
# JAX has no rule to batch these, or one with faults, or one that moves rows into columns.
PLAIN_ONLY: dict[str, Builder] = {fun.__name__: fun for fun in (cholesky_update, ragged, solve)}
