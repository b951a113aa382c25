"""Steps on one mesh that fail after they returned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.failing_programs import failing_later, forget_failures, step_replaced
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import StateLostError

TOLD = r"(?s)an earlier step failed .*memory ran out.*; the last one is runs/1"


def train(state: Any, batch: Any) -> Any:
    loss, grads = mw.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"])
    return {"w": state["w"] - 0.1 * grads, "count": state["count"] + 1}, loss


def test_state_of_a_step_that_failed_later_is_lost_and_said_so() -> None:
    # On several CPU devices XLA ends the process when one of them fails.
    step = mw.parallelize(train, cluster=cpu_cluster(1))
    batch = jnp.float32(np.random.default_rng(0).normal(size=(8, 4)))
    state, _ = step({"w": jnp.ones((4, 4)), "count": jnp.int32(0)}, batch)
    saved = jax.tree.map(np.array, state)
    step.saved("runs/1")
    with step_replaced(step, failing_later("memory ran out")):
        state, loss = step(state, batch)
    with pytest.raises(jax.errors.JaxRuntimeError, match="memory ran out"):
        jax.block_until_ready(loss)
    for _ in range(2):
        with pytest.raises(StateLostError, match=TOLD):
            step(state, batch)
    # From the checkpoint it goes on.
    state, loss = step(saved, batch)
    assert np.isfinite(float(loss))
    assert int(state["count"]) == 2
    forget_failures()
