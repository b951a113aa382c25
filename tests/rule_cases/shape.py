"""Primitives that rearrange, cut and join."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rule_cases.case import Case, bools, ints


def _reshape(*after: int, order: Any = None) -> Any:
    return lambda x: lax.reshape(x, after, order)


_KEYS = jax.random.split(jax.random.key(5), (8, 4))

CASES = (
    Case(
        "broadcast_in_dim",
        "new and stretched dims",
        lambda x: lax.broadcast_in_dim(x, (8, 1, 8, 8, 1), (0, 1, 3, 4)),
        (ints(8, 1, 1, 1),),
    ),
    Case("broadcast_in_dim", "scalar", lambda x: lax.broadcast_in_dim(x, (8, 4), ()), (ints(),)),
    Case(
        "broadcast_in_dim", "booleans", lambda x: lax.broadcast_in_dim(x, (8, 4), (0,)), (bools(8),)
    ),
    Case(
        "broadcast_in_dim", "to size 0", lambda x: lax.broadcast_in_dim(x, (0, 8), (1,)), (ints(8),)
    ),
    Case("broadcast_in_dim", "keys", lambda k: k[:, None], (_KEYS,)),
    Case("reshape", "merge", _reshape(64), (ints(2, 4, 8),)),
    Case("reshape", "split", _reshape(8, 2, 4), (ints(64),)),
    Case("reshape", "regroup", _reshape(8, 8, 1, 2), (ints(8, 16),)),
    Case("reshape", "batch with sequence", _reshape(8 * 3, 4), (ints(8, 3, 4),)),
    Case("reshape", "heads", _reshape(2, 3, 4, 2), (ints(2, 3, 8),)),
    Case("reshape", "no common factors at the end", _reshape(4, 6, 8), (ints(6, 4, 8),)),
    Case("reshape", "leading common factor", _reshape(8, 9), (ints(12, 6),)),
    Case("reshape", "dims in another order", _reshape(2, 64, order=(1, 0, 2)), (ints(16, 2, 4),)),
    Case("reshape", "nothing", _reshape(8, 0, 4), (ints(8, 0),)),
    Case("reshape", "ones", _reshape(1, 8, 1), (ints(8),)),
    Case("reshape", "scalar", _reshape(1, 1), (ints(),)),
    Case("reshape", "size 0", _reshape(8, 0), (ints(0, 4),)),
    Case("reshape", "permuted dims", lambda x: lax.reshape(x, (32,), (1, 0)), (ints(8, 4),)),
    Case("reshape", "booleans", _reshape(8, 4), (bools(32),)),
    Case("transpose", "3-D", lambda x: x.transpose(2, 0, 1), (ints(8, 4, 2),)),
    Case("transpose", "keys", lambda k: k.T, (_KEYS,)),
    Case("squeeze", "middle", lambda x: lax.squeeze(x, (1,)), (ints(8, 1, 8),)),
    Case("squeeze", "all", lambda x: lax.squeeze(x, (0, 1)), (ints(1, 1),)),
    Case("squeeze", "negative", lambda x: lax.squeeze(x, (-1,)), (ints(8, 1),)),
    Case("rev", "one dim", lambda x: lax.rev(x, (1,)), (ints(8, 3, 8),)),
    Case("iota", "last dim, bfloat16", lambda: lax.broadcasted_iota(jnp.bfloat16, (8, 16), 1), ()),
    Case("iota", "first dim", lambda: lax.broadcasted_iota(jnp.int32, (16, 2), 0), ()),
    Case("iota", "complex", lambda: lax.iota(jnp.complex64, 8), ()),
    Case("iota", "int8", lambda: lax.iota(jnp.int8, 16), ()),
    Case("tile", "in front of a dim", lambda x: jnp.tile(x, (8, 4)), (ints(8, 2),)),
    Case("tile", "a dim of size 1", lambda x: jnp.tile(x, (8, 2)), (ints(1, 8),)),
    Case("stack", "in the middle", lambda x, y: jnp.stack([x, y], 1), (ints(8, 4), -ints(8, 4))),
    Case("unstack", "last dim", lambda x: jnp.unstack(x, axis=1), (ints(8, 3),)),
    Case(
        "slice",
        "one dim, strided",
        lambda x: lax.slice(x, (0, 1, 0), (8, 5, 8), (1, 2, 1)),
        (ints(8, 6, 8),),
    ),
    Case("slice", "no strides", lambda x: x[:4], (ints(8, 8),)),
    Case("slice", "bfloat16", lambda x: x[:, 1:], (ints(8, 3, dtype=jnp.bfloat16),)),
    Case(
        "dynamic_slice",
        "one dim",
        lambda x, i: lax.dynamic_slice(x, (i, i), (8, 3)),
        (ints(8, 6), np.int32(5)),
    ),
    Case(
        "dynamic_slice",
        "nothing whole",
        lambda x, i: lax.dynamic_slice(x, (i,), (3,)),
        (ints(8), np.int32(2)),
    ),
    Case(
        "dynamic_update_slice",
        "one dim",
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)),
        (ints(8, 6), ints(8, 2), np.int32(2)),
    ),
    Case(
        "dynamic_update_slice",
        "clamped",
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)),
        (ints(8, 6), ints(8, 2), np.int32(9)),
    ),
    Case(
        "pad",
        "one dim",
        lambda x, v: lax.pad(x, v, [(0, 0, 0), (1, -1, 0), (0, 0, 0)]),
        (ints(8, 6, 8), np.float32(2)),
    ),
    Case(
        "pad",
        "between elements",
        lambda x, v: lax.pad(x, v, [(0, 0, 0), (0, 0, 1)]),
        (ints(8, 4), np.float32(2)),
    ),
    Case("concatenate", "two", lambda x, y: jnp.concatenate([x, y], 1), (ints(8, 6), ints(8, 2))),
    Case("concatenate", "same operand twice", lambda x: jnp.concatenate([x, x], 0), (ints(4, 8),)),
    Case("split", "uneven", lambda x: lax.split(x, (2, 4), 1), (ints(8, 6),)),
)
