"""One layer of attention in bfloat16, trained by gradient descent, with an attention of choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import meshwise as mw
from doubles.gpu_attention import gpu_attention

HEADS, GROUPS, WIDTH, LENGTH, ROWS = 8, 4, 64, 256, 8


def attention_step(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step on weights and a batch of "x" and "y"."""

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"].astype(jnp.bfloat16)

        def part(name: str, heads: int) -> Any:
            made = x @ weights[name].astype(x.dtype)
            return made.reshape(*x.shape[:2], heads, WIDTH)

        mixed = attention(part("q", HEADS), part("k", GROUPS), part("v", GROUPS))
        x = mixed.reshape(*x.shape[:2], -1) @ weights["o"].astype(x.dtype)
        return jnp.mean((x.astype(jnp.float32) - batch["y"]) ** 2)

    def step(weights: Any, batch: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

    return step


def shapes() -> tuple[Any, Any]:
    """Return weights and batch of the step by their shapes alone."""
    width = HEADS * WIDTH
    sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS, "o": HEADS}
    weights = {
        name: jax.ShapeDtypeStruct((width, heads * WIDTH), "float32")
        for name, heads in sizes.items()
    }
    rows = jax.ShapeDtypeStruct((ROWS, LENGTH, width), "float32")
    return weights, {"x": rows, "y": rows}


def by_cudnn(q: Any, k: Any, v: Any) -> Any:
    """Attention by cuDNN."""
    return mw.cudnn_attention(q, k, v, is_causal=True)


def by_triton(q: Any, k: Any, v: Any) -> Any:
    """Attention by the kernel of Pallas for GPUs."""
    k, v = (jnp.repeat(x, HEADS // GROUPS, axis=2) for x in (k, v))
    return gpu_attention.mha(q, k, v, None, WIDTH**-0.5, True)


def by_jax(q: Any, k: Any, v: Any) -> Any:
    """Attention of plain JAX."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
