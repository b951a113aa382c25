"""Gradient accumulation as people write it in JAX: the rival of a step with micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshwise.models.steps import ADAM, Config, step_parts


def hand_written_step(
    config: Config, rows: int, num_microbatches: int
) -> Callable[[Any, Any], tuple[Any, jax.Array]]:
    """Return a step on the state and batch of `models.steps.model_step`, with its optimizer.

    A `scan` over micro-batches adds their gradients to a sum of zeros, in the type of the
    parameters, and the optimizer takes the mean.  With one micro-batch there is no loop.

    Args:
        config: The configuration of any model.
        rows: Batch size.
        num_microbatches: Micro-batches.
    """
    _, loss, _ = step_parts(config, rows)
    gradient = jax.value_and_grad(loss, has_aux=True)

    def accumulated(params: Any, kept: Any, batch: Any) -> Any:
        def one(total: Any, micro: Any) -> tuple[Any, None]:
            values, kept, sums = total
            (value, kept), grads = gradient(params, kept, micro)
            return (values + value, kept, jax.tree.map(jnp.add, sums, grads)), None

        shape = num_microbatches, rows // num_microbatches
        micro = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), batch)
        start = jnp.zeros(()), kept, jax.tree.map(jnp.zeros_like, params)
        (value, kept, sums), _ = jax.lax.scan(one, start, micro)
        value, grads = jax.tree.map(lambda x: x / num_microbatches, (value, sums))
        return (value, kept), grads

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, kept, opt = state
        run = accumulated if num_microbatches > 1 else gradient
        (value, kept), grads = run(params, kept, batch)
        updates, opt = ADAM.update(grads, opt, params)
        return (optax.apply_updates(params, updates), kept, opt), value

    return step
