"""Functions of the host inside of a step, checks, kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import checkify, io_callback
from jax.experimental import pallas as pl

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, trained, weight

WIDTH, HIDDEN = 8, 16
PAIRS = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": floats(seed + 1, ROWS, WIDTH)})
PARAMS = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, WIDTH)}


def squares(p: Any, batch: Any) -> jax.Array:
    """Mean square of what two layers miss."""
    return jnp.mean((jnp.tanh(batch["x"] @ p["first"]) @ p["second"] - batch["y"]) ** 2)


def checked_by_checkify() -> Problem:
    """`checkify`: floating-point and own checks, the error returned beside the loss"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        h = jnp.tanh(batch["x"] @ p["first"])
        checkify.check(jnp.all(jnp.abs(h) <= 1), "tanh gave {h}", h=jnp.max(h))
        return jnp.mean((h @ p["second"] - batch["y"]) ** 2)

    def unchecked(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), loss

    checked = checkify.checkify(unchecked, errors=checkify.user_checks | checkify.nan_checks)

    def step(state: Any, batch: Any) -> Any:
        error, (state, loss) = checked(state, batch)
        # Its codes are numbered anew in each trace; whether there is an error is the same.
        failed = [leaf for leaf in jax.tree.leaves(error) if leaf.dtype == bool]
        return state, (loss, failed)

    return Problem(step=step, state=(PARAMS, ADAM.init(PARAMS)), calls=PAIRS)


def printed_by_debug() -> Problem:
    """`jax.debug.print` of a norm in the step and in the loss"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        h = jnp.tanh(batch["x"] @ p["first"])
        jax.debug.print("hidden {norm:.3f}", norm=jnp.linalg.norm(h))
        return jnp.mean((h @ p["second"] - batch["y"]) ** 2)

    return trained(loss_fn, PARAMS, PAIRS)


def logged_by_io_callback() -> Problem:
    """`io_callback(ordered=True)`: a log of losses on the host"""
    log: list[float] = []

    def step(state: Any, batch: Any) -> Any:
        params, count = state
        loss, grads = mw.value_and_grad(squares)(params, batch)
        io_callback(lambda value: log.append(float(value)), None, loss, ordered=True)
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), count + 1), loss

    return Problem(step=step, state=(PARAMS, jnp.int32(0)), calls=PAIRS)


def loss_of_the_host() -> Problem:
    """`pure_callback`: a loss of NumPy with a gradient of its own"""

    def on_host(out: Any, y: Any) -> Any:
        return np.float32(np.mean((np.asarray(out) - np.asarray(y)) ** 2))

    @jax.custom_vjp
    def loss_on_host(out: jax.Array, y: jax.Array) -> jax.Array:
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((), jnp.float32), out, y)

    loss_on_host.defvjp(
        lambda out, y: (loss_on_host(out, y), (out, y)),
        lambda kept, g: (2 * g * (kept[0] - kept[1]) / kept[0].size, jnp.zeros_like(kept[1])),
    )

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        return loss_on_host(jnp.tanh(batch["x"] @ p["first"]) @ p["second"], batch["y"])

    return trained(loss_fn, PARAMS, PAIRS)


def kernel_of_pallas() -> Problem:
    """Pallas: a fused bias and GELU by blocks of rows, with a gradient of its own"""
    block = 2

    def body(x_ref: Any, bias_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jax.nn.gelu(x_ref[...] + bias_ref[...])

    @jax.custom_vjp
    def fused(x: jax.Array, bias: jax.Array) -> jax.Array:
        rows, width = x.shape
        return pl.pallas_call(
            body,
            grid=(rows // block,),
            in_specs=[
                pl.BlockSpec((block, width), lambda i: (i, 0)),
                pl.BlockSpec((width,), lambda i: (0,)),
            ],
            out_specs=pl.BlockSpec((block, width), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            interpret=True,
        )(x, bias)

    def backward(kept: Any, g: jax.Array) -> Any:
        return jax.vjp(lambda x, bias: jax.nn.gelu(x + bias), *kept)[1](g)

    fused.defvjp(lambda x, bias: (fused(x, bias), (x, bias)), backward)

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        h = fused(batch["x"] @ p["first"], p["bias"])
        return jnp.mean((h @ p["second"] - batch["y"]) ** 2)

    return trained(loss_fn, {**PARAMS, "bias": jnp.zeros(HIDDEN)}, PAIRS)
