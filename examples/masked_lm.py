"""A masked language model: attention, and a loss over the masked positions only.

The loss divides by the number of masked positions of the whole batch, which differs from batch to
batch: with micro-batches that sum is taken before the loop, so the result stays that of one device.
`python examples/masked_lm.py`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw

VOCAB, LENGTH, WIDTH, HEADS, BATCH = 32, 16, 32, 4, 32
MASK = 0
OPTIMIZER = optax.adamw(3e-3, eps=1e-3)


class Encoder(nn.Module):
    """One bidirectional transformer layer between embedding and tied output."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        dtype = jnp.result_type(float)
        embed = nn.Embed(VOCAB, WIDTH, param_dtype=dtype)
        x = embed(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (LENGTH, WIDTH), dtype)
        h = nn.LayerNorm(param_dtype=dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, param_dtype=dtype)(h)
        h = nn.LayerNorm(param_dtype=dtype)(x)
        h = nn.gelu(nn.Dense(4 * WIDTH, param_dtype=dtype)(h))
        return embed.attend(x + nn.Dense(WIDTH, param_dtype=dtype)(h))


def create_state(key: jax.Array) -> dict[str, Any]:
    """Parameters and optimizer state."""
    params = Encoder().init(key, np.zeros((BATCH, LENGTH), np.int32))["params"]
    return {"params": params, "opt": OPTIMIZER.init(params)}


def batches(count: int) -> Iterator[dict[str, Any]]:
    """Arithmetic sequences of tokens, about one position in five masked."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        start, stride = rng.integers(0, VOCAB, (BATCH, 1)), rng.integers(1, 4, (BATCH, 1))
        text = (1 + (start + stride * np.arange(LENGTH)) % (VOCAB - 1)).astype(np.int32)
        masked = rng.random((BATCH, LENGTH)) < 0.2
        yield {"tokens": np.where(masked, MASK, text), "text": text, "masked": masked}


def train_step(state: Any, batch: Any) -> Any:
    """One step of AdamW."""

    def loss_fn(params: Any) -> jax.Array:
        logits = Encoder().apply({"params": params}, batch["tokens"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["text"])
        weights = batch["masked"].astype(losses.dtype)
        return (losses * weights).sum() / jnp.maximum(weights.sum(), 1)

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
