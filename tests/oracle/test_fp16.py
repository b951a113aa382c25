"""fp16 with dynamic loss scaling: the same steps are skipped as on one device (I1)."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.scaled_sgd import scaled_sgd
from meshwise.models.mixed_precision import cast_floats, first_loss_scale, scale_loss
from oracle.compare import whole_from_shards
from oracle.parallel import run_method, run_random
from oracle.problem import Problem, Trajectory, reference
from oracle.tolerances import FP16_LOSS

pytestmark = pytest.mark.usefixtures("quick_compile")

ROWS, WIDTH, NUM_STEPS = 32, 16, 5


def step(state: Any, batch: Any) -> Any:
    """SGD; a step whose gradients overflow is skipped and shrinks the scale."""
    scale = state["scale"]

    def scaled(params: Any) -> Any:
        half = cast_floats(params, jnp.float16)
        h = jnp.tanh(batch["x"].astype(jnp.float16) @ half["w"])
        error = (h @ half["v"]).astype(jnp.float32) - batch["y"]
        loss = jnp.mean(error**2)
        return scale_loss(loss, scale), loss

    return scaled_sgd(state, scaled)


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
    # The cotangent of an output is error / 256 times the scale, errors are about 1, and 32 rows
    # are summed: 2**27 overflows 65504 by far, 2**18 and less is far below it.
    return Problem(
        step=step, state={"params": params, "scale": first_loss_scale(2.0**27)}, calls=calls
    )


@cache
def wanted() -> Trajectory:
    return reference(problem())


def check(got: Trajectory) -> None:
    for (loss, finite, scale), (want_loss, want_finite, want_scale) in zip(
        got.outs, wanted().outs, strict=True
    ):
        assert whole_from_shards(finite) == want_finite
        assert whole_from_shards(scale.value) == want_scale.value
        assert whole_from_shards(scale.good_steps) == want_scale.good_steps
        np.testing.assert_allclose(whole_from_shards(loss), want_loss, rtol=FP16_LOSS)


def test_the_reference_skips_some_steps_and_the_scale_falls_and_grows():
    flags = [bool(finite) for _, finite, _ in wanted().outs]
    scales = [float(scale.value) for _, _, scale in wanted().outs]
    assert not flags[0]
    assert all(flags[1:])
    assert scales[0] == 2.0**17
    assert max(scales[1:]) > scales[0]


@pytest.mark.parametrize(
    ("method", "b"), [(mw.DataParallel(), 2), (mw.IntraOp((2, 4)), 1), (mw.Zero3(), 4)]
)
def test_the_same_steps_are_skipped(method, b):
    check(run_method(problem(), method, b))


def test_the_same_steps_are_skipped_under_a_random_decision():
    check(run_random(problem(), (2, 2, 2), seed=1, num_microbatches=2))
