"""Flax Linen: dropout, AdamW under a schedule, gradients clipped by their global norm.

`python examples/flax_linen.py`
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

import meshwise as mw
from plain_jax import BATCH, CLASSES, FEATURES, HIDDEN, batches


class Classifier(nn.Module):
    """A perceptron with dropout."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (batch, classes) of features (batch, features)."""
        x = nn.gelu(nn.Dense(HIDDEN, param_dtype=x.dtype)(x))
        x = nn.Dropout(0.2, deterministic=False)(x)
        return nn.Dense(CLASSES, param_dtype=x.dtype)(nn.LayerNorm(param_dtype=x.dtype)(x))


def optimizer() -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, warmup_steps=5, decay_steps=50)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=1e-3))


def create_state(key: jax.Array) -> dict[str, Any]:
    """Parameters, optimizer state, and the key of dropout."""
    x = np.zeros((BATCH, FEATURES), jax.numpy.result_type(float))
    params = Classifier().init({"params": key, "dropout": key}, x)["params"]
    return {"params": params, "opt": optimizer().init(params), "key": key}


def train_step(state: Any, batch: Any) -> Any:
    """One step of AdamW."""
    key, dropout = jax.random.split(state["key"])

    def loss_fn(params: Any) -> jax.Array:
        logits = Classifier().apply({"params": params}, batch["x"], rngs={"dropout": dropout})
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    updates, opt = optimizer().update(grads, state["opt"], state["params"])
    new = {"params": optax.apply_updates(state["params"], updates), "opt": opt, "key": key}
    return new, {"loss": loss, "gradient norm": optax.tree.norm(grads)}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
