"""Flax NNX: the module is split into its graph, which is static, and its arrays, the state.

`python examples/flax_nnx.py`
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import meshwise as mw
from plain_jax import CLASSES, FEATURES, HIDDEN, batches

OPTIMIZER = optax.lion(1e-3)


class Classifier(nnx.Module):
    """A perceptron with a normalised hidden layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Draw the parameters."""
        dtype = jnp.result_type(float)
        self.first = nnx.Linear(FEATURES, HIDDEN, param_dtype=dtype, rngs=rngs)
        self.norm = nnx.RMSNorm(HIDDEN, param_dtype=dtype, rngs=rngs)
        self.second = nnx.Linear(HIDDEN, CLASSES, param_dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (batch, classes) of features (batch, features)."""
        return self.second(self.norm(nnx.silu(self.first(x))))


def graph() -> Any:
    """The static half of the module; no array is made."""
    return nnx.split(nnx.eval_shape(lambda: Classifier(nnx.Rngs(0))), nnx.Param)[0]


def create_state(key: jax.Array) -> dict[str, Any]:
    """The arrays of the module, and the optimizer's."""
    params = nnx.split(Classifier(nnx.Rngs(key)), nnx.Param)[1]
    return {"params": params, "opt": OPTIMIZER.init(params)}


def train_step(state: Any, batch: Any) -> Any:
    """One step of Lion."""

    def loss_fn(params: Any) -> jax.Array:
        logits = nnx.merge(graph(), params)(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
