"""A GPT training step with Adam, the same for all benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.losses import mean_cross_entropy

State = tuple[Any, Any]
Batch = dict[str, Any]


def training_step(
    config: GptConfig,
) -> tuple[Callable[[State, Batch], tuple[State, jax.Array]], Callable[[jax.Array], State]]:
    """The step `(state, batch) -> (state, loss)`, and the function that makes its state."""
    model, tx = Gpt(config), optax.adam(1e-3)

    def create(key: jax.Array) -> State:
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return params, tx.init(params)

    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        params, opt_state = state

        def loss_fn(params: Any) -> jax.Array:
            logits: Any = model.apply({"params": params}, batch["x"])
            return mean_cross_entropy(logits, batch["y"])

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return step, create


def token_batch(config: GptConfig, batch: int) -> Batch:
    """Random tokens and labels."""
    rng = np.random.default_rng(0)
    shape = (batch, config.seq_len)
    return {
        name: rng.integers(config.vocab_size, size=shape).astype(np.int32) for name in ("x", "y")
    }


def abstract_batch(config: GptConfig, batch: int) -> Batch:
    """Shapes of `token_batch`."""
    spec = jax.ShapeDtypeStruct((batch, config.seq_len), jnp.int32)
    return {"x": spec, "y": spec}
