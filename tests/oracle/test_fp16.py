"""fp16 with dynamic loss scaling: the same steps are skipped as on one device (I1)."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from oracle.compare import whole_from_shards
from oracle.parallel import run_method, run_random
from oracle.problem import Problem, Trajectory, reference
from oracle.tolerances import FP16_LOSS

pytestmark = pytest.mark.usefixtures("quick_compile")

ROWS, WIDTH, NUM_STEPS = 32, 16, 5


def step(state: Any, batch: Any) -> Any:
    """SGD; a step whose gradients overflow is skipped and halves the scale."""

    def scaled_loss(params: Any) -> Any:
        half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
        h = jnp.tanh(batch["x"].astype(jnp.float16) @ half["w"])
        error = (h @ half["v"]).astype(jnp.float32) - batch["y"]
        loss = jnp.mean(error**2)
        return loss * state["scale"], loss

    (_, loss), grads = mw.value_and_grad(scaled_loss, has_aux=True)(state["params"])
    grads = jax.tree.map(lambda g: g / state["scale"], grads)
    finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), state["params"], grads)
    scale = jnp.where(finite, state["scale"], state["scale"] / 16)
    return {"params": params, "scale": scale}, (loss, finite, scale)


@cache
def problem() -> Problem:
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 4, "float32") for name in "wv"}
    calls = tuple(
        (
            {
                "x": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
                "y": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
            },
        )
        for _ in range(NUM_STEPS)
    )
    # 2**27 times a cotangent of about 1e-3 overflows, 2**23 and less does not.
    return Problem(step=step, state={"params": params, "scale": jnp.float32(2**27)}, calls=calls)


@cache
def wanted() -> Trajectory:
    return reference(problem())


def check(got: Trajectory) -> None:
    for (loss, finite, scale), (want_loss, want_finite, want_scale) in zip(
        got.outs, wanted().outs, strict=True
    ):
        assert whole_from_shards(finite) == want_finite
        assert whole_from_shards(scale) == want_scale
        np.testing.assert_allclose(whole_from_shards(loss), want_loss, rtol=FP16_LOSS)


def test_the_reference_skips_some_steps_and_not_all():
    flags = [bool(finite) for _, finite, _ in wanted().outs]
    assert not flags[0]
    assert flags[-1]


@pytest.mark.parametrize(
    ("method", "b"), [(mw.DataParallel(), 2), (mw.IntraOp((2, 4)), 1), (mw.Zero3(), 4)]
)
def test_the_same_steps_are_skipped(method, b):
    check(run_method(problem(), method, b))


def test_the_same_steps_are_skipped_under_a_random_decision():
    check(run_random(problem(), (2, 2, 2), seed=1, num_microbatches=2))
