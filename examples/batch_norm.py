"""Batch normalisation: the step carries running statistics beside the parameters.

On devices the statistics are those of the whole batch, as on one device.  With micro-batches they
do not separate: `microbatch_statistics="local"` takes them for each micro-batch, as GPipe does.
`python examples/batch_norm.py`
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from plain_jax import BATCH, CLASSES, FEATURES, HIDDEN, batches

OPTIMIZER = optax.sgd(0.1, momentum=0.9)


class Classifier(nn.Module):
    """A perceptron with a batch-normalised hidden layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (batch, classes) of features (batch, features)."""
        x = nn.Dense(HIDDEN, param_dtype=x.dtype)(x)
        x = nn.BatchNorm(use_running_average=False, momentum=0.9, param_dtype=x.dtype)(x)
        return nn.Dense(CLASSES, param_dtype=x.dtype)(nn.relu(x))


def create_state(key: jax.Array) -> dict[str, Any]:
    """Parameters, running statistics, optimizer state."""
    variables = Classifier().init(key, np.zeros((BATCH, FEATURES), jnp.result_type(float)))
    params = variables["params"]
    return {"params": params, "stats": variables["batch_stats"], "opt": OPTIMIZER.init(params)}


def train_step(state: Any, batch: Any) -> Any:
    """One step of momentum; the statistics are an auxiliary result of the loss."""

    def loss_fn(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state["stats"]}
        logits, new = Classifier().apply(variables, batch["x"], mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return losses.mean(), new["batch_stats"]

    (loss, stats), grads = mw.value_and_grad(loss_fn, has_aux=True)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "stats": stats, "opt": opt}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
