"""Gathers and scatters; indices run from below the first to beyond the last element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rule_cases.case import Case, bools, ints


def _index(*shape: int, size: int, dtype: Any = np.int32) -> Any:
    return ints(*shape, dtype=dtype, low=-size - 3, high=size + 4)


def _get(mode: str, fill_value: Any = None) -> Any:
    return lambda x, i: x.at[i].get(mode=mode, fill_value=fill_value)


def _short_get(x: Any, i: Any) -> Any:
    # `x.at[i]` refuses an index dtype that is too short for the dim.
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    return lax.gather(x, i[:, None], numbers, (1,), mode="fill")


def _short_add(x: Any, i: Any, u: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    return lax.scatter_add(x, i[:, None], u, numbers, mode="drop")


def _kept(x: Any, i: Any) -> Any:
    return jax.vmap(lambda j: lax.dynamic_slice(x, (j, 0), (1, 4)))(i)


def _add_kept(x: Any, i: Any, u: Any) -> Any:
    # Updates with a window of one row.
    numbers = lax.ScatterDimensionNumbers((1,), (), (0,))
    return lax.scatter_add(x, i[:, None], u, numbers, mode="drop")


def _add(mode: str) -> Any:
    return lambda x, i, u: x.at[i].add(u, mode=mode)


def _along_gradient(x: Any, i: Any, u: Any) -> Any:
    return jax.vjp(lambda x: jnp.take_along_axis(x, i, 1), x)[1](u)


def _window(x: Any, i: Any) -> Any:
    # A window of 3 columns and all rows for each start.
    numbers = lax.GatherDimensionNumbers((0, 1), (), (1,))
    return lax.gather(x, i, numbers, (8, 3), mode="fill")


def _full_window(x: Any, i: Any) -> Any:
    # The window covers dim 0, so that only the index 0 is in range.
    numbers = lax.GatherDimensionNumbers((1,), (1,), (0, 1))
    return lax.gather(x, i, numbers, (8, 1), mode="fill")


_KEYS = jax.random.split(jax.random.key(1), (8, 4))
_TABLE, _IDS = ints(8, 16), _index(8, 4, size=8)

GATHERS = (
    *(
        Case("gather", f"lookup, {m}", _get(m), (_TABLE, _IDS), costly=m != "fill")
        for m in ("fill", "clip", "promise_in_bounds")
    ),
    Case("gather", "fill value", _get("fill", 5), (_TABLE, _IDS)),
    Case("gather", "integers", _get("fill"), (_TABLE.astype(np.int32), _IDS)),
    Case("gather", "bfloat16", _get("fill"), (_TABLE.astype(jnp.bfloat16), _IDS), costly=True),
    Case("gather", "booleans", _get("fill"), (bools(8, 4), _IDS), costly=True),
    Case(
        "gather",
        "int8 index of a long dim",
        _short_get,
        (ints(512), ints(8, dtype=np.int8, low=-100, high=100)),
    ),
    Case(
        "gather", "uint32 index", _get("clip"), (_TABLE, ints(8, dtype=np.uint32, low=0, high=20))
    ),
    Case("gather", "odd table", _get("fill"), (ints(9, 8), _index(8, size=9))),
    Case("gather", "scalar index", _get("fill"), (_TABLE, np.int32(11))),
    Case("gather", "last dim", lambda x, i: x[:, i], (ints(9, 16), _index(8, size=16))),
    Case("gather", "window", _window, (ints(8, 16), _index(8, 1, size=16))),
    Case(
        "gather", "window that must start at 0", _full_window, (ints(8, 16), _index(4, 2, size=3))
    ),
    Case(
        "gather",
        "one element, dim kept",
        lambda x, i: (
            lax.dynamic_index_in_dim(x, i[0])
            if x is None
            else jax.vmap(lambda j: lax.dynamic_slice(x, (j, 0), (1, 4)))(i)
        ),
        (ints(16, 4), _index(8, size=16)),
    ),
    Case(
        "gather",
        "along an axis",
        lambda x, i: jnp.take_along_axis(x, i, 1),
        (ints(8, 16), _index(8, 4, size=16)),
    ),
    Case(
        "gather",
        "two columns",
        lambda x, i, j: x.at[i, j].get(mode="fill", fill_value=5),
        (_TABLE, _index(8, size=8), _index(8, size=16)),
    ),
    Case("gather", "keys", lambda k, i: k[i], (_KEYS, _index(8, size=8))),
)

_UPDATES = ints(8, 2, 16)
SCATTERS = (
    *(
        Case(
            "scatter-add",
            f"rows, {m}",
            _add(m),
            (ints(8, 16), _index(8, 2, size=8), _UPDATES),
            costly=m != "drop",
        )
        for m in ("drop", "clip", "promise_in_bounds")
    ),
    Case(
        "scatter-add",
        "last dim",
        lambda x, i, u: x.at[:, i].add(u),
        (ints(4, 16), _index(8, size=16), ints(4, 8)),
    ),
    Case(
        "scatter-add",
        "two columns",
        lambda x, i, j, u: x.at[i, j].add(u),
        (ints(8, 4), _index(8, size=8), _index(8, size=4), ints(8)),
    ),
    Case(
        "scatter-add",
        "gradient along an axis",
        _along_gradient,
        (ints(8, 16), _index(8, 4, size=16), ints(8, 4)),
    ),
    Case(
        "scatter-add",
        "int8 index",
        _short_add,
        (ints(512), ints(8, dtype=np.int8, low=-100, high=100), ints(8)),
    ),
    Case(
        "scatter-add",
        "integers",
        _add("drop"),
        (ints(8, 4, dtype=np.int32), _index(8, size=8), ints(8, 4, dtype=np.int32)),
        costly=True,
    ),
    Case(
        "scatter-add",
        "window",
        lambda x, i, u: (
            x.at[:, i[0] : i[0] + 1].add(u)
            if x is None
            else jax.vmap(lambda x, j, u: lax.dynamic_update_slice(x, u, (j,)))(x, i, u) * 0
            + x.at[i % 8].add(u[:, :1], mode="drop")
        ),
        (ints(8, 1), _index(8, size=8), ints(8, 1)),
    ),
    Case(
        "scatter-sub",
        "rows",
        lambda x, i, u: x.at[i].subtract(u),
        (ints(8, 4), _index(8, size=8), ints(8, 4)),
        costly=True,
    ),
    Case(
        "scatter-mul",
        "rows",
        lambda x, i, u: x.at[i].multiply(u),
        (ints(8, 4), _index(4, size=8), ints(4, 4)),
    ),
    Case(
        "scatter-max",
        "rows",
        lambda x, i, u: x.at[i].max(u),
        (ints(8, 4), _index(8, size=8), ints(8, 4)),
    ),
    Case(
        "scatter-min",
        "rows",
        lambda x, i, u: x.at[i].min(u),
        (ints(8, 4), _index(8, size=8), ints(8, 4)),
    ),
    Case(
        "scatter",
        "rows",
        lambda x, i, u: x.at[i].set(u),
        (ints(8, 16), _index(8, size=8), ints(8, 16)),
    ),
    Case(
        "scatter",
        "clipped",
        lambda x, i, u: x.at[i].set(u, mode="clip"),
        (ints(8, 4), _index(4, size=8), ints(4, 4)),
    ),
    Case(
        "scatter",
        "booleans",
        lambda x, i, u: x.at[i].set(u),
        (bools(8, 4), _index(8, size=8), bools(8, 4)),
    ),
)

# One update with an index that most blocks do not hold.
_ONE, _ROW = np.int32(13), ints(4)
SINGLE_UPDATES = (
    Case("scatter-add", "one row", lambda x, i, u: x.at[i].add(u), (ints(16, 4), _ONE, _ROW)),
    Case("scatter-mul", "one row", lambda x, i, u: x.at[i].multiply(u), (ints(16, 4), _ONE, _ROW)),
    Case("scatter-max", "one row", lambda x, i, u: x.at[i].max(u), (ints(16, 4), _ONE, _ROW)),
    Case("scatter", "one row", lambda x, i, u: x.at[i].set(u), (ints(16, 4), _ONE, _ROW)),
    Case(
        "scatter",
        "one row out of range",
        lambda x, i, u: x.at[i].set(u, mode="drop"),
        (ints(16, 4), np.int32(16), _ROW),
    ),
    Case("scatter", "one element", lambda x, i: x.at[i, 2].set(7.0), (ints(16, 4), _ONE)),
)

CASES = (*GATHERS, *SCATTERS, *SINGLE_UPDATES)
