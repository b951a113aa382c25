"""A generative adversarial network: two losses, two optimizers, one step.

`python examples/gan.py`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw

LATENT, HIDDEN, FEATURES, BATCH = 8, 32, 16, 32
OPTIMIZER = optax.adam(2e-3, b1=0.5, eps=1e-3)


def _layers(key: jax.Array, *sizes: int) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (a, b)) / np.sqrt(a), "b": jnp.zeros(b)}
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _apply(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for layer in layers[:-1]:
        x = jax.nn.leaky_relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def create_state(key: jax.Array) -> dict[str, Any]:
    """Both nets with their optimizers, and the key of the latent draws."""
    first, second, key = jax.random.split(key, 3)
    generator = _layers(first, LATENT, HIDDEN, FEATURES)
    critic = _layers(second, FEATURES, HIDDEN, 1)
    return {
        "generator": generator,
        "critic": critic,
        "generator_opt": OPTIMIZER.init(generator),
        "critic_opt": OPTIMIZER.init(critic),
        "key": key,
    }


def batches(count: int) -> Iterator[dict[str, Any]]:
    """Rows on a plane in feature space."""
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(2, FEATURES))
    for _ in range(count):
        rows = rng.normal(size=(BATCH, 2)) @ plane + 1.0
        yield {"x": rows.astype(jnp.result_type(float))}


def train_step(state: Any, batch: Any) -> Any:
    """The critic learns, then the generator against the new critic."""
    key, now = jax.random.split(state["key"])
    latent = jax.random.normal(now, (batch["x"].shape[0], LATENT))

    def critic_loss(critic: Any) -> jax.Array:
        fake = jax.lax.stop_gradient(_apply(state["generator"], latent))
        real_term = jax.nn.softplus(-_apply(critic, batch["x"])).mean()
        return real_term + jax.nn.softplus(_apply(critic, fake)).mean()

    critic_value, grads = mw.value_and_grad(critic_loss)(state["critic"])
    updates, critic_opt = OPTIMIZER.update(grads, state["critic_opt"])
    critic = optax.apply_updates(state["critic"], updates)

    def generator_loss(generator: Any) -> jax.Array:
        return jax.nn.softplus(-_apply(critic, _apply(generator, latent))).mean()

    generator_value, grads = mw.value_and_grad(generator_loss)(state["generator"])
    updates, generator_opt = OPTIMIZER.update(grads, state["generator_opt"])
    new = {
        "generator": optax.apply_updates(state["generator"], updates),
        "critic": critic,
        "generator_opt": generator_opt,
        "critic_opt": critic_opt,
        "key": key,
    }
    return new, {"critic": critic_value, "generator": generator_value}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
