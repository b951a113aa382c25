"""What the programs share: drawn numbers, and the step of a loss under an optimizer of Optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from oracle.problem import Problem

# Calls of each step: the second starts with the state that the first returned.
STEPS = 2
ROWS = 16
# Adam, as users write it, but for its eps: with the usual one it makes rounding noise large.
ADAM = optax.adam(1e-2, eps=1e-3)


def weight(seed: int, *shape: int) -> jax.Array:
    """A weight (..., in, out) of variance 1 / in."""
    drawn = np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[-2])
    return jnp.asarray(drawn, jnp.float32)


def floats(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(seed: int, bound: int, *shape: int) -> np.ndarray[Any, Any]:
    """Whole numbers below a bound."""
    return np.random.default_rng(seed).integers(0, bound, shape, np.int32)


def calls(draw: Callable[[int], Any]) -> tuple[Any, ...]:
    """The arguments after the state, for each call; `draw` gives a batch for a seed."""
    return tuple((draw(10 * i + 1),) for i in range(STEPS))


def trained(
    loss_fn: Callable[..., Any],
    params: Any,
    batches: tuple[Any, ...],
    optimizer: optax.GradientTransformation = ADAM,
    **options: Any,
) -> Problem:
    """The step that most users write: `loss_fn(params, batch)` under an optimizer."""

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = mw.value_and_grad(loss_fn)(params, batch)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    return Problem(step=step, state=(params, optimizer.init(params)), calls=batches, **options)
