"""What gather and scatter share: index columns, their range, their shift to a local block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray

from meshwise.rules.primitive import Shards

CLIP = lax.GatherScatterMode.CLIP
FILL_OR_DROP = lax.GatherScatterMode.FILL_OR_DROP
# Out of bounds, XLA clamps a promised gather and drops a promised scatter; so do the local forms.
PROMISE_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS
GATHER_MODES = (CLIP, FILL_OR_DROP, PROMISE_IN_BOUNDS)

_INT32_LIMIT = 2**31


def is_key(aval: ShapedArray) -> bool:
    """Return whether a value is an array of random keys."""
    return bool(jnp.issubdtype(aval.dtype, jax.dtypes.extended))


def can_shift(size: int) -> bool:
    """Return whether positions along a dim fit the int32 of local indices."""
    return size < _INT32_LIMIT


def _at_least_int32(indices: jax.Array) -> jax.Array:
    # The bound of a dim need not fit an int8 or int16 index.
    return indices if indices.dtype.itemsize >= 4 else indices.astype(jnp.int32)


def columns_in_range(indices: jax.Array, bounds: Sequence[int]) -> jax.Array:
    """Return which index vectors lie in `0 <= index <= bound` in every column."""
    wide = _at_least_int32(indices)
    inside = jnp.ones(wide.shape[:-1], bool)
    for column, bound in enumerate(bounds):
        here = wide[..., column]
        # A bound beyond the dtype of the index bounds nothing.
        top = min(bound, int(np.iinfo(here.dtype).max))
        inside &= (here >= 0) & (here <= here.dtype.type(top))
    return inside


def shifted_columns(
    shards: Shards,
    indices: jax.Array,
    bounds: Sequence[int],
    split: Mapping[int, int],
    *,
    clamp: bool,
) -> tuple[jax.Array, jax.Array]:
    """Return indices into the local blocks.

    Args:
        shards: How the loops are split.
        indices: Global indices, columns last.
        bounds: Largest index of each column that is in range.
        split: For each column whose dim is split, its loop.
        clamp: Clamp to the global range first; else what is out of range is not here.

    Returns:
        int32 indices, those that are not here clamped into the block; and a mask over the batch
        of what lies in the local block of all split columns.
    """
    wide = _at_least_int32(indices)
    here = jnp.ones(wide.shape[:-1], bool) if clamp else columns_in_range(indices, bounds)
    columns: list[jax.Array] = []
    for column, bound in enumerate(bounds):
        top = min(bound, int(np.iinfo(wide.dtype).max))
        index = lax.clamp(wide.dtype.type(0), wide[..., column], wide.dtype.type(top))
        index = index.astype(jnp.int32) if can_shift(bound) else index
        if column in split:
            loop = split[column]
            size, start = shards.local_size(loop), shards.block_start(loop)
            # A padded block holds all there is; XLA would fold the comparisons and what they need.
            if not (isinstance(start, int) and start == 0 and bound < size):
                index = index - start
                here &= (index >= 0) & (index < size)
                index = jnp.clip(index, 0, size - 1)
        columns.append(index)
    return jnp.stack(columns, axis=-1), here


def all_first(shards: Shards, loops: Iterable[int]) -> jax.Array | bool:
    """Return whether this is the first part of all the loops."""
    first: jax.Array | bool = True
    for loop in loops:
        first = jnp.logical_and(first, shards.is_first(loop))
    return first
