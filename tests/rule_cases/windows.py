"""Windows: pooling, its gradients and tangents; exact blocks, edges, ties, holes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rule_cases.case import Case, ints

_INIT = {lax.add: 0.0, lax.max: -jnp.inf, lax.min: jnp.inf}


def _pool(
    kind: Callable[..., Any], window: Any, strides: Any, padding: Any = "VALID", **more: Any
) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, _INIT[kind], kind, window, strides, padding, **more)


def _back(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, g: jax.vjp(forward, x)[1](g)


def _along(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, t: jax.jvp(forward, (x,), (t,))[1]


_X = ints(8, 4, 2)
_LONG = ints(2, 16)
_WHOLE = ints(2, 16, dtype=np.int32)
_PAIRS = _pool(lax.max, (1, 2, 1), (1, 2, 1))
_EXACT = _pool(lax.max, (1, 2), (1, 2))
_OVER = _pool(lax.max, (1, 3), (1, 2), "SAME")

CASES = (
    Case("reduce_window_max", "one dim", _PAIRS, (_X,)),
    Case("reduce_window_max", "strided overlap", _OVER, (_LONG,)),
    Case("reduce_window_max", "overlap of negatives", _OVER, (-abs(_LONG) - 1,)),
    Case(
        "reduce_window_max",
        "integers",
        lambda x: lax.reduce_window(
            x, np.int32(-(2**31)), lax.max, (1, 3), (1, 1), ((0, 0), (2, 0))
        ),
        (_WHOLE,),
    ),
    Case("reduce_window_min", "one dim", _pool(lax.min, (1, 2, 1), (1, 1, 1), "SAME"), (_X,)),
    Case("reduce_window_min", "edges", _pool(lax.min, (1, 3), (1, 1), "SAME"), (abs(_LONG) + 1,)),
    Case("reduce_window_sum", "one dim", _pool(lax.add, (1, 2, 1), (1, 1, 1), "SAME"), (_X,)),
    Case("reduce_window_sum", "sparse", _pool(lax.add, (1, 1), (1, 2)), (_LONG,)),
    Case(
        "reduce_window_sum",
        "corners",
        _pool(lax.add, (3, 3), (1, 1), "SAME"),
        (ints(8, 8),),
    ),
    Case(
        "reduce_window_sum",
        "holes",
        _pool(lax.add, (1, 2), (1, 1), ((0, 0), (1, 1)), base_dilation=(1, 2)),
        (_LONG,),
    ),
    Case(
        "reduce_window_sum",
        "dilated",
        _pool(lax.add, (1, 3), (1, 1), "SAME", window_dilation=(1, 2)),
        (_LONG,),
    ),
    Case("select_and_scatter_add", "gradient", _back(_PAIRS), (_X, ints(8, 2, 2))),
    Case("select_and_scatter_add", "exact blocks", _back(_EXACT), (_LONG, ints(2, 8))),
    Case("select_and_scatter_add", "overlap", _back(_OVER), (_LONG, ints(2, 8))),
    Case(
        "select_and_scatter_add",
        "edges on both sides",
        _back(_pool(lax.max, (1, 5), (1, 2), ((0, 0), (2, 1)))),
        (ints(2, 32), ints(2, 16)),
        costly=True,
    ),
    Case(
        "select_and_scatter_add",
        "corners of minima",
        _back(_pool(lax.min, (3, 3), (1, 1), "SAME")),
        (ints(8, 8), ints(8, 8) + 1),
        costly=True,
    ),
    Case(
        "select_and_scatter_add",
        "sparse",
        _back(_pool(lax.max, (1, 1), (1, 2))),
        (_LONG, ints(2, 8)),
        costly=True,
    ),
    Case("select_and_gather_add", "tangent", _along(_PAIRS), (_X, ints(8, 4, 2) + 1)),
    Case("select_and_gather_add", "overlap", _along(_OVER), (_LONG, _LONG[:, ::-1] + 1)),
)
