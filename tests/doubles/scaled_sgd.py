"""SGD with a dynamic loss scale: a step whose gradients overflow is skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import meshwise as mw
from meshwise.models.mixed_precision import adjust, all_finite, unscale, where_finite


def scaled_sgd(state: Any, scaled: Callable[[Any], tuple[Any, Any]]) -> Any:
    """One step.

    Args:
        state: `params` and `scale`.
        scaled: From parameters to the scaled loss and the loss.
    """
    scale = state["scale"]
    (_, loss), grads = mw.value_and_grad(scaled, has_aux=True)(state["params"])
    grads = unscale(grads, scale)
    finite = all_finite(grads)
    updated = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
    params = where_finite(finite, updated, state["params"])
    scale = adjust(scale, finite, growth_interval=2, backoff=1 / 1024)
    return {"params": params, "scale": scale}, (loss, finite, scale)
