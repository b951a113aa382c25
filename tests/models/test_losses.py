"""Losses against a direct NumPy computation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from meshwise.models.losses import masked_mean_cross_entropy, mean_cross_entropy

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 5, 7)).astype(np.float32)
LABELS = RNG.integers(7, size=(3, 5))
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LOSSES = -np.log(np.take_along_axis(PROBS, LABELS[..., None], -1))[..., 0]


def test_mean() -> None:
    np.testing.assert_allclose(mean_cross_entropy(LOGITS, LABELS), LOSSES.mean(), rtol=1e-5)


def test_masked_mean_ignores_what_is_masked() -> None:
    mask = RNG.integers(2, size=(3, 5))
    expected = LOSSES[mask == 1].mean()
    np.testing.assert_allclose(
        masked_mean_cross_entropy(LOGITS, LABELS, jnp.asarray(mask)), expected, rtol=1e-5
    )


def test_narrow_logits_are_widened() -> None:
    assert mean_cross_entropy(jnp.asarray(LOGITS, jnp.bfloat16), LABELS).dtype == jnp.float32
