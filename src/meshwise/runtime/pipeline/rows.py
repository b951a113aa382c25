"""Rows of a batch that lies on devices of several processes, some of which may have nothing of it.

JAX computes on an array in the processes that have some of it only, and chooses where the result
lies.  Here the place of the result is known beforehand, so that it is the same in every process.
"""

from __future__ import annotations

import math
from functools import partial

import jax
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from meshwise.runtime.devices import array_of


def rows_of_part(value: Array, dim: int, start: int, size: int) -> Array:
    """Return rows of an array of which each process of a job has its part, or nothing.

    Args:
        value: The array; every process that has some of it makes the same call.
        dim: The dim of the rows.
        start: The first row.
        size: How many rows.

    Returns:
        The rows, split as the array is if their number can be, else whole along `dim`.
    """
    assert isinstance(value.sharding, NamedSharding)
    shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
    sharding = _of_rows(value.sharding, dim, value.ndim, size)
    shards: list[Array] = []
    if value.addressable_shards:
        found = _rows(value, start, dim=dim, size=size, sharding=sharding)
        shards = [shard.data for shard in found.addressable_shards]
    return array_of(jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding), shards)


@partial(jax.jit, static_argnames=("dim", "size", "sharding"))
def _rows(value: Array, start: int, *, dim: int, size: int, sharding: NamedSharding) -> Array:
    rows = lax.dynamic_slice_in_dim(value, start, size, dim)
    return lax.with_sharding_constraint(rows, sharding)


def _of_rows(sharding: NamedSharding, dim: int, rank: int, size: int) -> NamedSharding:
    """Return the sharding of so many rows of an array in a sharding."""
    entries = [*sharding.spec, *[None] * (rank - len(sharding.spec))]
    entry = entries[dim]
    names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    if size % math.prod(sharding.mesh.shape[name] for name in names):
        entries[dim] = None
    return NamedSharding(sharding.mesh, PartitionSpec(*entries))
