"""Flax Linen, Flax NNX and Haiku as their pages write them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import haiku as hk
import jax
import optax
from flax import nnx
from flax.training import train_state

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers

WIDTH, CLASSES, LENGTH = 16, 8, 8
LABELLED = calls(
    lambda seed: {"x": floats(seed, ROWS, LENGTH, WIDTH), "y": integers(seed, CLASSES, ROWS)}
)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def scanned_encoder_of_linen() -> Problem:
    """Flax Linen: `TrainState`, `nn.scan` over `nn.remat` blocks, dropout streams"""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: Any) -> Any:
            attention = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.1)
            x = x + attention(nn.LayerNorm()(x), deterministic=False)
            return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x)))), None

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            layers = nn.scan(
                nn.remat(Block, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=2,
            )
            x, _ = layers()(x, None)
            return nn.Dense(CLASSES)(x.mean(1))

    model = Encoder()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = model.init(keys, LABELLED[0][0]["x"])["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=ADAM)

    def step(state: Any, batch: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(2), state.step)

        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, batch["x"], rngs={"dropout": key})
            return cross_entropy(logits, batch["y"])

        loss, grads = mw.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Problem(step=step, state=state, calls=LABELLED)


def recurrence_of_nnx() -> Problem:
    """Flax NNX: `nnx.RNN` with a GRU cell, `nnx.Optimizer` merged and split in the step"""

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.recurrence = nnx.RNN(nnx.GRUCell(WIDTH, WIDTH, rngs=rngs))
            self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(self.recurrence(x)[:, -1])

    model = Net(nnx.Rngs(0))
    graph, state = nnx.split((model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)))

    def step(state: Any, batch: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)

        def loss_fn(model: Any) -> jax.Array:
            return cross_entropy(model(batch["x"]), batch["y"])

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return Problem(step=step, state=state, calls=LABELLED)


def recurrence_of_haiku() -> Problem:
    """Haiku: `transform_with_state`, `dynamic_unroll`, moving averages, `hk.next_rng_key`"""

    def forward(x: jax.Array) -> jax.Array:
        x = hk.BatchNorm(True, True, 0.9)(x, is_training=True)
        core = hk.GRU(WIDTH)
        out, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[0]), time_major=False)
        out = hk.dropout(hk.next_rng_key(), 0.1, out)
        return hk.Linear(CLASSES)(out.mean(1))

    model = hk.transform_with_state(forward)
    params, kept = model.init(jax.random.PRNGKey(0), LABELLED[0][0]["x"])

    def loss_fn(params: Any, kept: Any, key: jax.Array, batch: Any) -> Any:
        logits, kept = model.apply(params, kept, key, batch["x"])
        return cross_entropy(logits, batch["y"]), kept

    def step(state: Any, batch: Any) -> Any:
        params, kept, opt, key = state
        key, now = jax.random.split(key)
        differentiated = mw.value_and_grad(loss_fn, has_aux=True)
        (loss, kept), grads = differentiated(params, kept, now, batch)
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), kept, opt, key), loss

    state = (params, kept, ADAM.init(params), jax.random.PRNGKey(1))
    return Problem(step=step, state=state, calls=LABELLED)
