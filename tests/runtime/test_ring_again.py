"""A ring that the backward pass computes again: its gradient sends before it reads anything."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw
from meshwise.units import MIB

LENGTH, HEADS, FEATURES = 1024, 2, 16
WIDTH = HEADS * FEATURES


@jax.checkpoint
def _attention(q: Any, k: Any, v: Any) -> jax.Array:
    place = jnp.arange(LENGTH)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(FEATURES)
    scores = jnp.where(place[:, None] >= place[None, :], scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> jax.Array:
        q, k, v = (
            (batch @ weights[name]).reshape(*batch.shape[:2], HEADS, FEATURES) for name in "qkv"
        )
        return jnp.mean(jnp.sin(_attention(q, k, v)))

    value, gradient = mw.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradient), value


def test_keys_wait_for_the_ring_before_them() -> None:
    """XLA:CPU would send them while that ring still runs; the program would be refused."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in "qkv"}
    batch = rng.normal(size=(1, LENGTH, WIDTH)).astype(np.float32)
    parallel = mw.parallelize(
        _step, method=mw.IntraOp((8,)), batch_argnums=(1,), memory_bytes=2 * MIB
    )
    assert parallel.plan(drawn, batch).joins_attention
    found = parallel(jax.tree.map(jnp.array, drawn), batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found,
        jax.jit(_step)(drawn, batch),
    )
