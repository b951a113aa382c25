"""LoRA: the large weights are frozen, only low-rank factors are trained.

The frozen weights get a layout of their own and no gradient, no optimizer state.
`python examples/lora.py`; source of the method: Hu et al., arXiv 2106.09685, equation 3.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from plain_jax import CLASSES, FEATURES, HIDDEN, batches

RANK = 4
OPTIMIZER = optax.adam(1e-2, eps=1e-3)
SHAPES = {"first": (FEATURES, HIDDEN), "second": (HIDDEN, CLASSES)}


def create_state(key: jax.Array) -> dict[str, Any]:
    """Frozen weights, factors A (random) and B (zero), optimizer state of the factors."""
    frozen, factors = {}, {}
    for number, (name, (rows, columns)) in enumerate(SHAPES.items()):
        w_key, a_key = jax.random.split(jax.random.fold_in(key, number))
        frozen[name] = jax.random.normal(w_key, (rows, columns)) / rows**0.5
        a = jax.random.normal(a_key, (rows, RANK)) / rows**0.5
        factors[name] = {"a": a, "b": jnp.zeros((RANK, columns))}
    return {"frozen": frozen, "factors": factors, "opt": OPTIMIZER.init(factors)}


def train_step(state: Any, batch: Any) -> Any:
    """One step of Adam on the factors."""

    def dense(factors: Any, name: str, x: jax.Array) -> jax.Array:
        return x @ state["frozen"][name] + x @ factors[name]["a"] @ factors[name]["b"]

    def loss_fn(factors: Any) -> jax.Array:
        logits = dense(factors, "second", jax.nn.relu(dense(factors, "first", batch["x"])))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = mw.value_and_grad(loss_fn)(state["factors"])
    updates, opt = OPTIMIZER.update(grads, state["opt"])
    factors = optax.apply_updates(state["factors"], updates)
    return {"frozen": state["frozen"], "factors": factors, "opt": opt}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
