"""An opaque kernel: softmax attention fused in Pallas, with a backward pass of its own.

Meshwise does not look into the kernels.  Their statements say that batch and heads may be split;
rows, keys and features stay whole.  On a CPU Pallas interprets the kernels, which is slow.

`python examples/opaque_kernel.py`
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import meshwise as mw

FEATURES, HEADS, LENGTH, BATCH = 32, 4, 8, 16
WIDTH = FEATURES // HEADS


def weights(q: jax.Array, k: jax.Array) -> jax.Array:
    """Softmax of the scores of one head, (rows, keys)."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    scores = jnp.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def forward_kernel(q: Any, k: Any, v: Any, out: Any) -> None:
    """One head of one sequence."""
    out[...] = weights(q[...], k[...]) @ v[...]


def backward_kernel(q: Any, k: Any, v: Any, cotangent: Any, dq: Any, dk: Any, dv: Any) -> None:
    """Cotangents of one head of one sequence; the weights are computed again."""
    w, g = weights(q[...], k[...]), cotangent[...]
    dw = g @ v[...].T
    scores = w * (dw - (dw * w).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq[...] = scores @ k[...]
    dk[...] = scores.T @ q[...]
    dv[...] = w.T @ g


def for_each_head(kernel: Any, operands: tuple[jax.Array, ...], results: tuple[Any, ...]) -> Any:
    """Run a kernel on every head of arrays of shape (batch, heads, rows, features).

    The grid comes from the operands: a device has a part of the batch and of the heads.
    """

    def block(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, *x.shape[2:]), lambda b, h: (b, h, 0, 0))

    return pl.pallas_call(
        kernel,
        grid=operands[0].shape[:2],
        in_specs=[block(x) for x in operands],
        out_specs=[block(x) for x in results],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
        interpret=jax.default_backend() == "cpu",
    )(*operands)


def attention_flop(products: int, q: Any, k: Any, *others: Any) -> float:
    """FLOP of so many products of rows, keys and features."""
    del others
    return products * 2.0 * q.size * k.shape[2]


@mw.sharded_kernel(loops="bhqd,bhkd,bhkd->bhqd", whole="qkd", flop=partial(attention_flop, 2))
def fused_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention of arrays of shape (batch, heads, rows, features)."""
    return for_each_head(forward_kernel, (q, k, v), (q,))[0]


@mw.sharded_kernel(
    loops="bhqd,bhkd,bhkd,bhqd->bhqd,bhkd,bhkd", whole="qkd", flop=partial(attention_flop, 5)
)
def fused_attention_gradient(q: Any, k: Any, v: Any, cotangent: Any) -> tuple[Any, ...]:
    """Cotangents of `q`, `k` and `v`."""
    return tuple(for_each_head(backward_kernel, (q, k, v, cotangent), (q, k, v)))


@jax.custom_vjp
def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention with both passes fused."""
    return fused_attention(q, k, v)


attention.defvjp(
    lambda q, k, v: (fused_attention(q, k, v), (q, k, v)),
    lambda saved, cotangent: fused_attention_gradient(*saved, cotangent),
)


def create_state(key: jax.Array) -> dict[str, Any]:
    """Projections into heads and out of them."""
    keys = jax.random.split(key, 4)
    wide = (FEATURES, HEADS, WIDTH)
    params = {
        name: jax.random.normal(k, wide) / np.sqrt(FEATURES)
        for name, k in zip(("q", "k", "v", "out"), keys, strict=True)
    }
    return {"params": params}


def batches(count: int) -> Iterator[dict[str, Any]]:
    """Sequences whose target is their own rows, one place later."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.normal(size=(BATCH, LENGTH, FEATURES)).astype(jnp.result_type(float))
        yield {"x": x, "y": np.roll(x, 1, axis=1)}


def train_step(state: Any, batch: Any) -> Any:
    """Gradient descent."""

    def loss_fn(params: Any) -> jax.Array:
        heads = {n: jnp.einsum("blf,fhw->bhlw", batch["x"], params[n]) for n in ("q", "k", "v")}
        mixed = attention(heads["q"], heads["k"], heads["v"])
        out = jnp.einsum("bhlw,fhw->blf", mixed, params["out"])
        return jnp.mean((out - batch["y"]) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(state["params"])
    params = jax.tree.map(lambda p, g: p - 0.5 * g, state["params"], grads)
    return {"params": params}, {"loss": loss}


if __name__ == "__main__":
    from show import train, virtual_devices

    virtual_devices()
    train(train_step, create_state, batches(50))
