"""Equinox: modules as trees, state, errors at run time."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers, trained, weight

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


def attention_under_filter_checkpoint() -> Problem:
    """Equinox: attention with dropout keys by row, blocks under `eqx.filter_checkpoint`"""
    length = 6

    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.LayerNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            first, second, third = jax.random.split(key, 3)
            self.attention = eqx.nn.MultiheadAttention(2, WIDTH, dropout_p=0.1, key=first)
            self.norm = eqx.nn.LayerNorm(WIDTH)
            self.up = eqx.nn.Linear(WIDTH, HIDDEN, key=second)
            self.down = eqx.nn.Linear(HIDDEN, WIDTH, key=third)

        @eqx.filter_checkpoint
        def __call__(self, x: Any, key: Any) -> Any:
            y = jax.vmap(self.norm)(x)
            x = x + self.attention(y, y, y, key=key)
            return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(x)))

    blocks = [Block(key) for key in jax.random.split(jax.random.key(0), 2)]
    params, static = eqx.partition(blocks, eqx.is_inexact_array)

    def loss_fn(params: Any, keys: Any, batch: Any) -> Any:
        def of_row(x: Any, key: Any) -> Any:
            for block, now in zip(
                eqx.combine(params, static), jax.random.split(key, 2), strict=True
            ):
                x = block(x, now)
            return x.mean(0)

        return cross_entropy(jax.vmap(of_row)(batch["x"], keys), batch["y"])

    def step(state: Any, batch: Any) -> Any:
        params, opt, key = state
        key, now = jax.random.split(key)
        keys = jax.random.split(now, batch["x"].shape[0])
        loss, grads = mw.value_and_grad(loss_fn)(params, keys, batch)
        updates, opt = ADAM.update(grads, opt)
        return (eqx.apply_updates(params, updates), opt, key), loss

    state = (params, ADAM.init(params), jax.random.key(1))
    texts = calls(
        lambda seed: {"x": floats(seed, ROWS, length, WIDTH), "y": integers(seed, CLASSES, ROWS)}
    )
    return Problem(step=step, state=state, calls=texts)


def bounded_loop() -> Problem:
    """Equinox: `eqx.internal.while_loop(kind="checkpointed")`, differentiated in reverse"""

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        def again(x: jax.Array) -> jax.Array:
            return x + 0.3 * jnp.tanh(x @ params["w"])

        x = eqx.internal.while_loop(
            lambda carry: carry[1] < 4,
            lambda carry: (again(carry[0]), carry[1] + 1),
            (batch["x"], jnp.int32(0)),
            max_steps=8,
            kind="checkpointed",
        )[0]
        return cross_entropy(x @ params["head"], batch["y"])

    params = {"w": weight(0, WIDTH, WIDTH), "head": weight(1, WIDTH, CLASSES)}
    return trained(loss_fn, params, LABELLED)
