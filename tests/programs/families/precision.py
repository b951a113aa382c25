"""Numbers of few bits, scaled losses, accumulated and rematerialised gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, trained, weight

WIDTH, HIDDEN = 16, 32
PAIRS = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": floats(seed + 1, ROWS, WIDTH)})
PARAMS = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, WIDTH)}


def mixed_precision_with_loss_scaling() -> Problem:
    """Mixed precision: products in bfloat16, a dynamic loss scale, updates skipped by `cond`"""

    def step(state: Any, batch: Any) -> Any:
        params, opt, scale, good = state

        def loss_fn(params: Any) -> jax.Array:
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            h = jax.nn.relu(batch["x"].astype(jnp.bfloat16) @ half["first"])
            out = (h @ half["second"]).astype(jnp.float32)
            return scale * jnp.mean((out - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(params)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))

        def updated() -> Any:
            updates, new = ADAM.update(grads, opt)
            return optax.apply_updates(params, updates), new

        params, opt = lax.cond(finite, updated, lambda: (params, opt))
        grown = jnp.where(good >= 1, scale * 2, scale)
        scale = jnp.where(finite, grown, scale / 2)
        return (params, opt, scale, jnp.where(finite, good + 1, 0)), (loss / scale, finite)

    state = (PARAMS, ADAM.init(PARAMS), jnp.float32(2.0**10), jnp.int32(0))
    return Problem(step=step, state=state, calls=PAIRS)


def products_in_int8() -> Problem:
    """Quantised to int8 while training: whole-number products, gradients straight through"""

    @jax.custom_vjp
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        of_x = jnp.max(jnp.abs(x)) / 127
        of_w = jnp.max(jnp.abs(w), axis=0) / 127
        whole = lax.dot(
            jnp.round(x / of_x).astype(jnp.int8),
            jnp.round(w / of_w).astype(jnp.int8),
            preferred_element_type=jnp.int32,
        )
        return whole.astype(jnp.float32) * of_x * of_w

    product.defvjp(
        lambda x, w: (product(x, w), (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g)
    )

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        h = jax.nn.relu(product(batch["x"], params["first"]))
        return jnp.mean((product(h, params["second"]) - batch["y"]) ** 2)

    return trained(loss_fn, PARAMS, PAIRS)


def gradients_accumulated_by_hand() -> Problem:
    """Gradient accumulation by the user's own `scan` over parts of the batch"""
    parts = 4

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        h = jnp.tanh(batch["x"] @ params["first"])
        return jnp.mean((h @ params["second"] - batch["y"]) ** 2)

    def step(state: Any, batch: Any) -> Any:
        params, opt = state

        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_fn)(params, part)), None

        split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
        zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        loss, grads = jax.tree.map(lambda x: x / parts, lax.scan(add, zero, split)[0])
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), loss

    return Problem(step=step, state=(PARAMS, ADAM.init(PARAMS)), calls=PAIRS)


def layers_scanned_and_rematerialised() -> Problem:
    """Remat with a policy (`dots_saveable`) around each layer of a `scan` over stacked layers"""
    layers = 4

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        def layer(x: jax.Array, p: Any) -> Any:
            return x + jax.nn.gelu(x @ p["up"]) @ p["down"], None

        again = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
        x, _ = lax.scan(again, batch["x"], params)
        return jnp.mean((x - batch["y"]) ** 2)

    params = {"up": weight(0, layers, WIDTH, HIDDEN), "down": weight(1, layers, HIDDEN, WIDTH)}
    return trained(loss_fn, params, PAIRS)


def dropout_and_weight_decay_masks() -> Problem:
    """Dropout with folded keys in each layer; decay masked by leaf, a schedule of the rate"""

    def step(state: Any, batch: Any) -> Any:
        params, opt, key = state
        now = jax.random.fold_in(key, opt[-1].count)

        def loss_fn(params: Any) -> jax.Array:
            x = batch["x"]
            for i, p in enumerate(params):
                kept = jax.random.bernoulli(jax.random.fold_in(now, i), 0.9, x.shape)
                x = x + jnp.tanh(jnp.where(kept, x / 0.9, 0) @ p["w"] + p["bias"])
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt, key), loss

    params = [{"w": weight(i, WIDTH, WIDTH), "bias": jnp.zeros(WIDTH)} for i in range(3)]
    optimizer = optax.chain(
        optax.scale_by_adam(eps=1e-3),
        optax.add_decayed_weights(0.01, mask=lambda tree: jax.tree.map(lambda p: p.ndim > 1, tree)),
        optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(-1e-3, -1e-2, 2, 10)),
    )
    state = (params, optimizer.init(params), jax.random.key(0, impl="rbg"))
    return Problem(step=step, state=state, calls=PAIRS)
