"""Where partial sums may pass; a wrong entry here is a wrong gradient there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from oracle.every_strategy import runs_of

X, N, B = np.ones((8, 4), np.float32), np.ones((8, 4), np.int32), np.ones((8, 4), bool)
IDS = np.zeros((8,), np.int32)


@pytest.mark.parametrize(
    ("primitive", "fun", "operands", "linear"),
    [
        ("add", lax.add, (X, X), ((0, 1),)),
        ("mul", lax.mul, (X, X), ((0,), (1,))),
        ("div", lax.div, (X, X), ((0,),)),
        ("div", lax.div, (N, N), ()),
        ("max", lax.max, (X, X), ()),
        ("tanh", jnp.tanh, (X,), ()),
        ("convert_element_type", lambda x: x.astype(jnp.bfloat16), (X,), ()),
        (
            "convert_element_type",
            lambda x: x.astype(jnp.float32),
            (X.astype(jnp.bfloat16),),
            ((0,),),
        ),
        ("convert_element_type", lambda x: x.astype(jnp.bfloat16), (X.astype(np.float16),), ()),
        ("convert_element_type", lambda x: x.astype(jnp.int32), (X,), ()),
        ("select_n", jnp.where, (B, X, X), ((1, 2),)),
        ("select_n", jnp.where, (B, B, B), ()),
        ("broadcast_in_dim", lambda x: lax.broadcast(x, (2,)), (X,), ((0,),)),
        ("broadcast_in_dim", lambda x: lax.broadcast(x, (2,)), (B,), ()),
        ("gather", lambda x, i: x.at[i].get(mode="fill"), (X, IDS), ((0,),)),
        ("gather", lambda x, i: x.at[i].get(mode="fill", fill_value=1), (X, IDS), ()),
        ("gather", lambda x, i: x.at[i].get(mode="fill"), (N, IDS), ()),
        ("scatter-add", lambda x, i: x.at[i].add(x), (X, IDS), ((0, 2),)),
        ("scatter-mul", lambda x, i: x.at[i].multiply(x), (X, IDS), ()),
        ("scatter", lambda x, i: x.at[i].set(x), (X, IDS), ()),
        ("concatenate", lambda x: jnp.concatenate([x, x]), (X,), ((0, 1),)),
        (
            "dynamic_update_slice",
            lambda x: lax.dynamic_update_slice(x, x[:1], (0, 0)),
            (X,),
            ((0, 1),),
        ),
        ("cumsum", lambda x: lax.cumsum(x), (X,), ((0,),)),
        ("cumprod", lambda x: lax.cumprod(x), (X,), ()),
        ("sort", lambda x: lax.sort(x), (X,), ()),
    ],
)
def test_linear_groups(primitive: str, fun: Any, operands: Any, linear: Any) -> None:
    (run,) = runs_of(fun, operands, primitive)
    assert run.rule.linear == linear


@pytest.mark.parametrize(
    ("primitive", "fun", "operands", "kinds"),
    [
        # The indexed dim is a contiguous block: never the micro-batch axis.
        (
            "gather",
            lambda x, i: x[i],
            (X, IDS),
            [("parallel", False), ("sum", True), ("parallel", False)],
        ),
        (
            "gather",
            lambda x, i: x[i],
            (B, IDS),
            [("parallel", False), ("or", True), ("parallel", False)],
        ),
        (
            "scatter-add",
            lambda x, i: x.at[i].add(x),
            (X, IDS),
            [("sum", False), ("parallel", True), ("parallel", False)],
        ),
        (
            "scatter-max",
            lambda x, i: x.at[i].max(x),
            (X, IDS),
            [("max", False), ("parallel", True), ("parallel", False)],
        ),
        (
            "scatter",
            lambda x, i: x.at[i].set(x),
            (X, IDS),
            [("parallel", True), ("parallel", False)],
        ),
        ("reduce_max", lambda x: jnp.max(x, 0), (X,), [("max", False), ("parallel", False)]),
        ("reduce_and", lambda x: jnp.all(x, 0), (B,), [("and", False), ("parallel", False)]),
        ("argmax", lambda x: lax.argmax(x, 0, np.int32), (X,), [("parallel", False)]),
        (
            "conv_general_dilated",
            lambda x: lax.conv(
                jnp.ones((8, 4, 5, 5)), jnp.ones((2, 4, 3, 3)) * x[0, 0], (1, 1), "SAME"
            ),
            (X,),
            [*[("parallel", False)] * 2, ("sum", False), *[("parallel", True)] * 2],
        ),
    ],
)
def test_loops(primitive: str, fun: Any, operands: Any, kinds: list[tuple[str, bool]]) -> None:
    (run,) = runs_of(fun, operands, primitive)
    assert [(loop.kind, loop.block) for loop in run.rule.loops] == kinds


def test_an_unknown_primitive_is_replicated_and_says_so() -> None:
    (run,) = runs_of(
        lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (2, 1), (1, 1), "SAME"),
        (X,),
        "reduce_window",
    )
    assert not run.rule.ruled
    assert run.rule.whole == "no rule"
    assert run.rule.loops == ()


def test_flop_of_a_convolution() -> None:
    image, kernel = np.ones((2, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)

    def conv(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, (2, 2), "SAME")

    (forward,) = runs_of(conv, (image, kernel), "conv_general_dilated")
    flop = 2 * (2 * 6 * 4 * 4) * (4 * 3 * 3)
    assert forward.row.flop(forward.equation) == flop
    backward = runs_of(
        lambda x, k: jax.vjp(lambda x: conv(x, k), x)[1](conv(x, k)),
        (image, kernel),
        "conv_general_dilated",
    )
    # The gradient of a strided convolution reads a dilated input, whose holes cost nothing.
    assert backward[-1].row.flop(backward[-1].equation) == flop
