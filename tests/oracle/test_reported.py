"""Steps that once came out wrong, each as small as it could be made (I1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from oracle.compare import assert_same_x64
from oracle.parallel import run_method, run_random
from oracle.problem import Problem, reference

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")


def _of_a_batch(fun: Callable[..., Any], batch: Any) -> Problem:
    return Problem(
        step=lambda state, batch: (state, fun(batch)), state=jnp.zeros(()), calls=((batch,),)
    )


ROWS = np.random.default_rng(0).normal(size=(16, 8))


@pytest.mark.parametrize(
    "update",
    [
        lambda x: x.at[-1].add(1.0),
        lambda x: x.at[15].set(1.0),
        lambda x: x.at[15, 2].multiply(2.0),
        lambda x: x.at[15].max(2.0),
        lambda x: x.at[16].add(1.0, mode="drop"),
    ],
    ids=["add", "set", "multiply", "max", "drop"],
)
def test_one_update_touches_one_block(update):
    """XLA merged the cut into blocks with the update, and wrote into the other blocks too."""
    problem = _of_a_batch(update, ROWS)
    want = reference(problem)
    assert_same_x64(want, run_method(problem, mw.IntraOp((8,))))
    for seed in (0, 1, 3):
        assert_same_x64(want, run_random(problem, (2, 4) if seed == 0 else (2, 2, 2), seed))


def test_a_maximum_over_devices_keeps_nan():
    """An all-reduce to the maximum took the number where only a later device had NaN."""
    batch = ROWS.copy()
    batch[13, 2] = np.nan
    batch[2, 5] = np.inf
    batch[4, 1] = -np.inf

    def fun(x):
        whole = (jnp.max(x), jnp.min(x), jnp.abs(x).max(0), x.min(0), x.max(1))
        return *whole, [x.astype(d).max(0).astype(x.dtype) for d in (jnp.float32, jnp.bfloat16)]

    problem = _of_a_batch(fun, batch)
    want = reference(problem)
    for seed, shape in enumerate([(8,), (2, 4), (2, 2, 2), (2, 4)]):
        got = run_random(problem, shape, seed)
        for a, b in zip(jax.tree.leaves(want.outs), jax.tree.leaves(got.outs), strict=True):
            np.testing.assert_array_equal(np.asarray(b), a)


def test_bits_of_integers_reduce_as_bits():
    """Partial results of a bitwise "and" or "or" were reduced as if they were booleans."""
    bits = np.random.default_rng(0).integers(0, 100, (16, 8))
    problem = _of_a_batch(
        lambda x: (jnp.bitwise_and.reduce(x | 64, 0), jnp.bitwise_or.reduce(x, 0)), bits
    )
    want = reference(problem)
    for seed in range(4):
        assert_same_x64(want, run_random(problem, (2, 4), seed))


def test_donated_state_is_not_overwritten_before_a_loop_reads_it():
    """XLA left out the copy of donated parameters that a loop read after their update."""

    def step(params, batch):
        def loss(p):
            rows = jax.lax.map(lambda row: (row @ p).sum(), batch)
            return rows.sum() + jax.lax.map(lambda row: jnp.tanh(row @ p).sum(), batch).sum()

        value, grads = mw.value_and_grad(loss)(params)
        return params - 0.1 * grads, value

    params = jnp.asarray(np.random.default_rng(1).normal(size=(8, 8)))
    problem = Problem(step=step, state=params, calls=((ROWS,), (ROWS + 1.0,)))
    want = reference(problem)
    for method in (mw.DataParallel(), mw.IntraOp((8,)), mw.IntraOp((2, 4))):
        assert_same_x64(want, run_method(problem, method))


def test_arrays_without_elements_change_layout():
    """Collectives refuse them."""
    problem = _of_a_batch(
        lambda x: (x[:, :0] * 2.0, jnp.concatenate([x, x[:, :0]], 1), x[:, :0].sum(1)), ROWS
    )
    want = reference(problem)
    for seed in range(4):
        assert_same_x64(want, run_random(problem, (2, 2, 2), seed))
