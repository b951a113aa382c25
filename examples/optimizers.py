"""One model under many optimizers of Optax: `python examples/optimizers.py muon`.

The step is the same for all; what the optimizer does to its state is planned like anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw
import plain_jax
from plain_jax import batches

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(3e-3, eps=1e-3),
    "adamw": lambda: optax.adamw(3e-3, eps=1e-3, weight_decay=0.01),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "lion": lambda: optax.lion(1e-3),
    "muon": lambda: optax.contrib.muon(1e-2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
    "scheduled": lambda: optax.adam(optax.cosine_decay_schedule(1e-2, 50), eps=1e-3),
    "multi-steps": lambda: optax.MultiSteps(
        optax.adam(3e-3, eps=1e-3), every_k_schedule=2
    ).gradient_transformation(),
}


def create_state(name: str, key: jax.Array) -> dict[str, Any]:
    """Parameters and optimizer state."""
    params = plain_jax.create_state(key)["params"]
    return {"params": params, "opt": OPTIMIZERS[name]().init(params)}


def train_step(name: str, state: Any, batch: Any) -> Any:
    """One step of the optimizer called `name`."""

    def loss_fn(params: Any) -> jax.Array:
        hidden = jnp.tanh(batch["x"] @ params["w1"] + params["b1"])
        return optax.softmax_cross_entropy_with_integer_labels(
            hidden @ params["w2"], batch["y"]
        ).mean()

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    updates, opt = OPTIMIZERS[name]().update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    chosen = sys.argv[1] if len(sys.argv) > 1 else "adamw"
    if chosen not in OPTIMIZERS:
        sys.exit(f"no optimizer {chosen!r}; one of {', '.join(OPTIMIZERS)}")
    virtual_devices()
    train(partial(train_step, chosen), partial(create_state, chosen), batches(50))
