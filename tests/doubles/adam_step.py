"""Layers with Adam: a step most of whose state only the update reads."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw

ADAM = optax.adam(1e-2)
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.scale(-1e-2))
LAMB = optax.lamb(1e-2)


def adam_step(optimizer: optax.GradientTransformation = ADAM) -> Any:
    """Return a step on (weights, state of the optimizer) and a batch of "x" and "y"."""

    def step(state: Any, batch: Any) -> Any:
        weights, kept = state

        def loss_fn(weights: Any) -> Any:
            x = batch["x"]
            for w in weights:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        updates, kept = optimizer.update(grads, kept, weights)
        return (optax.apply_updates(weights, updates), kept), loss

    return step


def guarded_adam_step() -> Any:
    """Return the same, which keeps its state where the loss or the moments are no numbers."""
    plain = adam_step()

    def step(state: Any, batch: Any) -> Any:
        made, loss = plain(state, batch)
        is_sound = jnp.isfinite(loss + sum(jnp.sum(m**2) for m in state[1][0].mu))
        return jax.tree.map(lambda new, old: jnp.where(is_sound, new, old), made, state), loss

    return step


def scanned_adam_step() -> Any:
    """Return the same for a stack of layers, over which the step scans."""

    def step(state: Any, batch: Any) -> Any:
        stack, kept = state

        def loss_fn(stack: Any) -> Any:
            x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], stack)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(stack)
        updates, kept = ADAM.update(grads, kept, stack)
        return (optax.apply_updates(stack, updates), kept), loss

    return step


def shapes(widths: tuple[int, ...], num_rows: int = 64) -> tuple[Any, Any]:
    """Return the state and the batch of `adam_step` by their shapes alone."""
    spec = jax.ShapeDtypeStruct
    weights = [spec(shape, jnp.float32) for shape in itertools.pairwise(widths)]
    batch = {
        "x": spec((num_rows, widths[0]), jnp.float32),
        "y": spec((num_rows, widths[-1]), jnp.float32),
    }
    return (weights, jax.eval_shape(ADAM.init, weights)), batch
