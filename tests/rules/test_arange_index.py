from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.rules.arange_index import batching_form
from meshwise.rules.primitive import Equation
from meshwise.rules.table import primitive_rule
from oracle.every_strategy import runs_of

RNG = np.random.default_rng(0)
ROWS = RNG.integers(-9, 9, (8, 6, 5)).astype(np.float32)
LABELS = np.array([0, 5, -1, 7, 2, 2, -8, 3], np.int32)


def scatter_gradient(x: Any, y: Any) -> Any:
    return jax.grad(lambda x: (x[jnp.arange(8), y] * ROWS[:, 0]).sum())(x)


CASES: dict[str, tuple[str, Callable[..., Any], tuple[int | None, ...], tuple[int, ...]]] = {
    "lookup": ("gather", lambda x, y: x[jnp.arange(8), y], (0, None), (1,)),
    "filled": (
        "gather",
        lambda x, y: x.at[jnp.arange(8), y].get(mode="fill", fill_value=3),
        (0, None),
        (1,),
    ),
    "second column": (
        "gather",
        lambda x, y: x.transpose(1, 0, 2)[y, jnp.arange(8)],
        (None, 0),
        (0,),
    ),
    "two counting columns": (
        "gather",
        lambda x, y: x[jnp.arange(8)[:, None], jnp.arange(6), y[:, None]],
        (0, 1, None),
        (2,),
    ),
    "gradient": ("scatter-add", scatter_gradient, (0, None), (1,)),
    "set": ("scatter", lambda x, y: x.at[jnp.arange(8), y].set(1.0), (0, None), (1,)),
}


@pytest.mark.parametrize("case", CASES)
def test_batching_form_gives_the_same_values(case: str) -> None:
    primitive, fun, iota_along, keep = CASES[case]
    (run,) = runs_of(fun, [ROWS, LABELS], primitive)
    form = batching_form(run.equation, iota_along)
    assert form is not None
    assert form.keep == keep
    indices = run.operands[1][..., list(form.keep)]
    operands = (run.operands[0], indices, *run.operands[2:])
    out = run.equation.primitive.bind(*operands, **form.params)
    np.testing.assert_array_equal(out, run.results[0])
    avals = tuple(jax.typeof(value) for value in operands)
    rewritten = Equation(
        run.equation.primitive, form.params, avals, run.equation.out_avals, (None,) * len(avals)
    )
    rule = primitive_rule(rewritten).rule(rewritten)
    (batch,) = rule.operands[0][1 if case == "second column" else 0]
    assert rule.loops[batch].kind == "parallel"
    assert not rule.loops[batch].block


def test_a_longer_operand_dim_is_no_batch_dim() -> None:
    (run,) = runs_of(lambda x, y: x[jnp.arange(4), y[:4]], [ROWS, LABELS], "gather")
    assert batching_form(run.equation, (0, None)) is None


def test_one_index_dim_serves_one_column() -> None:
    square = ROWS[:6]
    (run,) = runs_of(lambda x: x[jnp.arange(6), jnp.arange(6)], [square], "gather")
    form = batching_form(run.equation, (0, 0))
    assert form is not None
    assert form.keep == (1,)
    out = run.equation.primitive.bind(square, run.operands[1][..., 1:], **form.params)
    np.testing.assert_array_equal(out, run.results[0])


def test_no_counting_column_is_left_alone() -> None:
    (run,) = runs_of(lambda x, y: x[jnp.arange(8), y], [ROWS, LABELS], "gather")
    assert batching_form(run.equation, (None, None)) is None
