"""Haiku: a transformed function with random numbers, RMSProp.

`python examples/haiku_mlp.py`
"""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from plain_jax import BATCH, CLASSES, FEATURES, HIDDEN, batches

OPTIMIZER = optax.rmsprop(1e-3, eps=1e-3)


@hk.transform
def logits_of(x: jax.Array) -> jax.Array:
    """Logits (batch, classes) of features (batch, features)."""
    hidden = jax.nn.relu(hk.Linear(HIDDEN)(x))
    hidden = hk.dropout(hk.next_rng_key(), 0.1, hidden)
    return hk.Linear(CLASSES)(hidden)


def create_state(key: jax.Array) -> dict[str, Any]:
    """Parameters, optimizer state, number of the step."""
    params = logits_of.init(key, np.zeros((BATCH, FEATURES), jnp.result_type(float)))
    return {"params": params, "opt": OPTIMIZER.init(params), "step": jnp.int32(0)}


def train_step(state: Any, batch: Any) -> Any:
    """One step of RMSProp."""
    key = jax.random.fold_in(jax.random.key(1), state["step"])

    def loss_fn(params: Any) -> Any:
        logits = logits_of.apply(params, key, batch["x"])
        right = (logits.argmax(-1) == batch["y"]).mean(dtype=logits.dtype)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), right

    (loss, right), grads = mw.value_and_grad(loss_fn, has_aux=True)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    new = {"params": params, "opt": opt, "step": state["step"] + 1}
    return new, {"loss": loss, "accuracy": right}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
