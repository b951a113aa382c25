"""One block of an array at a place that is known only when the program runs."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def take_block(value: Array, start: Array, size: int, dim: int) -> Array:
    """Take a block of elements along a dim, from a place that is known only when the program runs.

    XLA takes two slices for one where only a product with a scalar lies between, and forgets the
    product, if they are of 32 or 64 bit integers: `x[i : i + 2] * 3`, and then one of the two.  So
    integers are cut as those of the other sign.

    Source: seen with `jax.jit` alone, JAX 0.10.2 on CPU (docs/xla_cpu.md section 6).

    Args:
        value: The array.
        start: The first element.
        size: The number of elements.
        dim: The dim.

    Returns:
        The block.
    """
    dtype = value.dtype
    if not jnp.issubdtype(dtype, jnp.integer):
        return lax.dynamic_slice_in_dim(value, start, size, dim)
    is_signed = jnp.issubdtype(dtype, jnp.signedinteger)
    other = jnp.dtype(f"{'u' if is_signed else ''}int{jnp.iinfo(dtype).bits}")
    cut = lax.dynamic_slice_in_dim(lax.bitcast_convert_type(value, other), start, size, dim)
    return lax.bitcast_convert_type(cut, dtype)
