"""Equinox: modules as trees, state, errors at run time."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers

WIDTH, HIDDEN, CLASSES = 8, 16, 8
LABELLED = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": integers(seed, CLASSES, ROWS)})
IMAGES = calls(lambda seed: {"x": floats(seed, ROWS, 3, 8, 8), "y": integers(seed, CLASSES, ROWS)})


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def stopped_by_error_if() -> Problem:
    """`eqx.error_if` on the loss and on activations, modules partitioned"""
    model = eqx.nn.MLP(WIDTH, CLASSES, HIDDEN, 2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        logits = jax.vmap(eqx.combine(params, static))(batch["x"])
        logits = eqx.error_if(logits, jnp.any(jnp.abs(logits) > 1e3), "logits are too large")
        return cross_entropy(logits, batch["y"])

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = mw.value_and_grad(loss_fn)(params, batch)
        loss = eqx.error_if(loss, jnp.isnan(loss), "the loss is not a number")
        updates, opt = ADAM.update(grads, opt)
        return (eqx.apply_updates(params, updates), opt), loss

    return Problem(step=step, state=(params, ADAM.init(params)), calls=LABELLED)


def statistics_in_a_state() -> Problem:
    """Equinox with state: batch norm in `eqx.nn.State`, convolutions, a `vmap` axis name"""

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.BatchNorm
        head: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            first, second = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(3, 8, 3, padding=1, key=first)
            self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
            self.head = eqx.nn.Linear(8, CLASSES, key=second)

        def __call__(self, x: Any, state: Any) -> Any:
            x, state = self.norm(self.conv(x), state)
            return self.head(jax.nn.relu(x).mean((1, 2))), state

    model, start = eqx.nn.make_with_state(Net)(jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params: Any, kept: Any, batch: Any) -> Any:
        net = jax.vmap(
            eqx.combine(params, static), in_axes=(0, None), out_axes=(0, None), axis_name="batch"
        )
        logits, kept = net(batch["x"], kept)
        return cross_entropy(logits, batch["y"]), kept

    def step(state: Any, batch: Any) -> Any:
        params, kept, opt = state
        (loss, kept), grads = mw.value_and_grad(loss_fn, has_aux=True)(params, kept, batch)
        updates, opt = ADAM.update(grads, opt)
        return (eqx.apply_updates(params, updates), kept, opt), loss

    return Problem(step=step, state=(params, start, ADAM.init(params)), calls=IMAGES)
