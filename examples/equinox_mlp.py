"""Equinox: the module is partitioned into its arrays, the state, and the rest, which is static.

`python examples/equinox_mlp.py`
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from plain_jax import CLASSES, FEATURES, HIDDEN, batches

OPTIMIZER = optax.adam(1e-2, eps=1e-3)


def make(key: jax.Array) -> eqx.nn.MLP:
    """A perceptron for one row; `jax.vmap` makes it work on a batch."""
    dtype = jnp.result_type(float)
    return eqx.nn.MLP(FEATURES, CLASSES, HIDDEN, depth=2, dtype=dtype, key=key)


def static_part() -> Any:
    """All of the module that is not an array; no array is made."""
    return eqx.partition(eqx.filter_eval_shape(make, jax.random.key(0)), _is_array)[1]


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def create_state(key: jax.Array) -> dict[str, Any]:
    """The arrays of the module, and the optimizer's."""
    params = eqx.filter(make(key), eqx.is_array)
    return {"params": params, "opt": OPTIMIZER.init(params)}


def train_step(state: Any, batch: Any) -> Any:
    """One step of Adam."""

    def loss_fn(params: Any) -> jax.Array:
        logits = jax.vmap(eqx.combine(params, static_part()))(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    return {"params": eqx.apply_updates(state["params"], updates), "opt": opt}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
