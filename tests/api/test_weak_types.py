"""Weak types: what a number of Python promotes, and what comes back, is as under `jax.jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw

PIPELINE: dict[str, Any] = {
    "method": mw.Auto(stages=2, schedule="1f1b"),
    "cluster": mw.Cluster.virtual("2x p3.2xlarge"),
    "num_microbatches": 2,
}
WAYS = pytest.mark.parametrize("options", [{}, PIPELINE], ids=["one mesh", "pipeline"])

pytestmark = pytest.mark.usefixtures("quick_steps")


def types(tree: Any) -> list[Any]:
    return [(x.dtype, jax.typeof(x).weak_type) for x in jax.tree.leaves(tree)]


def layers(state: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ state["a"]) @ state["b"]) ** 2)


def descent(state: Any, x: jax.Array, rate: Any) -> Any:
    """A rate in the state, and one beside it."""
    weights = {"a": state["a"], "b": state["b"]}
    loss, grads = mw.value_and_grad(layers)(weights, x)
    new = jax.tree.map(lambda p, g: p - state["rate"] * rate * g, weights, grads)
    return {**new, "rate": state["rate"] * 0.5, "count": state["count"] + 1}, loss, rate


def begun() -> tuple[dict[str, Any], jax.Array]:
    rng = np.random.default_rng(0)
    a, b, x = (jnp.asarray(rng.normal(size=(8, 8)), jnp.bfloat16) for _ in range(3))
    return {"a": a, "b": b, "rate": 0.5, "count": 0}, x


@WAYS
def test_an_order_of_calls_changes_no_type(options: dict[str, Any]) -> None:
    state, x = begun()
    one = jax.jit(descent)
    for rates in ((0.5, jnp.float32(0.5), 0.5), (np.float32(0.5), 0.5), (jnp.asarray(0.5), 0.5)):
        step = mw.parallelize(descent, donate_argnums=(), **options)
        for rate in rates:
            expected, found = one(state, x, rate), step(state, x, rate)
            assert types(found) == types(expected)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(
                    np.float32(np.asarray(a)), np.float32(np.asarray(b)), rtol=0.02, atol=0.02
                )


@WAYS
def test_a_state_keeps_its_types_from_step_to_step(options: dict[str, Any]) -> None:
    one, step = jax.jit(descent), mw.parallelize(descent, **options)
    (expected, x), (found, _) = begun(), begun()
    for _ in range(3):
        expected, *wanted = one(expected, x, 1.0)
        found, *rest = step(found, x, 1.0)
        assert types((found, rest)) == types((expected, wanted))
    assert types(found["a"]) == [(jnp.bfloat16, False)]
    # The second step has the plan of the first.
    assert len(step._executables) == 1


def test_a_step_that_follows_a_pipeline_returns_weak_types() -> None:
    state, x = begun()
    step = mw.parallelize(descent, **PIPELINE)
    state, *_ = step(state, x, 1.0)

    def evaluate(state: Any, x: Any) -> Any:
        return layers(state, x), state["rate"], state["count"] * 2

    found = mw.parallelize(evaluate, method=mw.Follow(step))(state, x)
    assert types(found)[1:] == [(jnp.float32, True), (jnp.int32, True)]
