"""Plain JAX: a dict of parameters, momentum by hand, no library.

`python examples/plain_jax.py`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw

FEATURES, HIDDEN, CLASSES, BATCH = 32, 64, 8, 64


def create_state(key: jax.Array) -> dict[str, Any]:
    """Parameters and their momentum."""
    first, second = jax.random.split(key)
    params = {
        "w1": jax.random.normal(first, (FEATURES, HIDDEN)) / np.sqrt(FEATURES),
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
    }
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}


def batches(count: int) -> Iterator[dict[str, Any]]:
    """Rows whose class is the largest of some fixed directions."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(FEATURES, CLASSES))
    for _ in range(count):
        x = rng.normal(size=(BATCH, FEATURES))
        yield {
            "x": x.astype(jnp.result_type(float)),
            "y": (x @ directions).argmax(-1).astype(np.int32),
        }


def train_step(state: Any, batch: Any) -> Any:
    """Gradient descent with momentum."""

    def loss_fn(params: Any) -> jax.Array:
        hidden = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"])
        log_probs = jax.nn.log_softmax(hidden @ params["w2"])
        return -log_probs[jnp.arange(batch["y"].shape[0]), batch["y"]].mean()

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
