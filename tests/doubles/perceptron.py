"""A step that is planned in a moment: a few layers with momentum, by their shapes alone."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

import meshwise as mw


def perceptron(widths: tuple[int, ...], num_rows: int = 32) -> tuple[Any, Any, Any]:
    """Layers of some widths with momentum."""
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in itertools.pairwise(widths)]

    def step(state: Any, batch: Any) -> Any:
        weights, momentum = state

        def loss_fn(weights: Any) -> Any:
            x = batch["x"]
            for w in weights:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum)
        return (weights, momentum), loss

    rows = {
        "x": jax.ShapeDtypeStruct((num_rows, widths[0]), jnp.float32),
        "y": jax.ShapeDtypeStruct((num_rows, widths[-1]), jnp.float32),
    }
    return step, (weights, weights), rows
