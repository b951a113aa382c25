"""Cross entropy of next-token logits, in plain `jax.numpy`."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def token_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Negative log-probability of each label.

    Args:
        logits: `[..., vocab]`; computed in float32, or wider if they are.
        labels: Integers below `vocab`, `[...]`.

    Returns:
        `[...]`, in nats.
    """
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_probs = jax.nn.log_softmax(wide, axis=-1)
    return -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]


def mean_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean of `token_cross_entropy` over all tokens.

    Args:
        logits: `[..., vocab]`.
        labels: Integers below `vocab`, `[...]`.

    Returns:
        A scalar in nats.
    """
    return jnp.mean(token_cross_entropy(logits, labels))


def masked_mean_cross_entropy(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over the tokens where `mask` is not 0; it divides by the sum of the mask.

    Args:
        logits: `[..., vocab]`.
        labels: `[...]`.
        mask: Weights, `[...]`; their sum must not be 0.
    """
    losses = token_cross_entropy(logits, labels)
    weights = mask.astype(losses.dtype)
    return jnp.sum(losses * weights) / jnp.sum(weights)
