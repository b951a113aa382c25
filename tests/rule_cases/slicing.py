"""Slices and updates at dynamic places; places run from below the first to beyond the last."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rule_cases.case import Case, bools, ints

_STARTS = (-3, 0, 7, 8, 13, 15, 40)


def _reads(x: Any, *starts: Any) -> Any:
    return [lax.dynamic_slice(x, (i, jnp.zeros_like(i)), (1, 4)) for i in starts]


def _writes(x: Any, y: Any, *starts: Any) -> Any:
    return [lax.dynamic_update_slice(x, y, (i, jnp.zeros_like(i))) for i in starts]


_INDEX = tuple(np.int32(i) for i in _STARTS)

CASES = (
    Case("dynamic_slice", "one row", _reads, (ints(16, 4), *_INDEX), costly=True),
    Case("dynamic_slice", "one row of booleans", _reads, (bools(16, 4), np.int32(9))),
    Case("dynamic_slice", "one row of integers", _reads, (ints(16, 4, dtype=np.int32), _INDEX[4])),
    Case("dynamic_slice", "one row, 64-bit place", _reads, (ints(16, 4), np.int64(9)), x64=True),
    Case("dynamic_slice", "one row, 8-bit place", _reads, (ints(256, 4), np.int8(100))),
    Case(
        "dynamic_slice",
        "one element",
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (1, 1)),
        (ints(16, 8), np.int32(11), np.int32(5)),
    ),
    Case(
        "dynamic_slice",
        "one element of a cut row",
        lambda x, i, j: lax.dynamic_slice(x, (i, j, j), (1, 3, 8)),
        (ints(16, 6, 8), np.int32(11), np.int32(2)),
    ),
    Case(
        "dynamic_update_slice", "one row", _writes, (ints(16, 4), ints(1, 4), *_INDEX), costly=True
    ),
    Case(
        "dynamic_update_slice",
        "one row, 64-bit place",
        _writes,
        (ints(16, 4), ints(1, 4), np.int64(9)),
        x64=True,
    ),
    Case(
        "dynamic_update_slice",
        "one row of booleans",
        _writes,
        (bools(16, 4), bools(1, 4), np.int32(9)),
    ),
    Case(
        "dynamic_update_slice",
        "one element",
        lambda x, y, i, j: lax.dynamic_update_slice(x, y, (i, j)),
        (ints(16, 8), ints(1, 1), np.int32(11), np.int32(5)),
        costly=True,
    ),
    Case(
        "dynamic_update_slice",
        "a cache of keys",
        lambda x, y, i: lax.dynamic_update_slice_in_dim(x, y, i, 1),
        (ints(2, 8, 4), ints(2, 1, 4), np.int32(5)),
        costly=True,
    ),
)
