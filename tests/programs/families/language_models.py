"""Language models written out in plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oracle.problem import Problem
from programs.data import ROWS, calls, integers, trained, weight

VOCAB, WIDTH, HEADS, GROUPS, LENGTH = 32, 16, 4, 2, 8
SIZE = WIDTH // HEADS
TOKENS = calls(lambda seed: integers(seed, VOCAB, ROWS, LENGTH + 1))


def rotate(x: jax.Array) -> jax.Array:
    """Rotary positions of (rows, length, heads, width of a head)."""
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None, None] * rates
    first, second = jnp.split(x, 2, axis=-1)
    turned = first * jnp.cos(angles) - second * jnp.sin(angles)
    return jnp.concatenate([turned, first * jnp.sin(angles) + second * jnp.cos(angles)], -1)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root mean square norm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def cross_entropy(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids).mean()


def grouped_queries_with_rotary_positions() -> Problem:
    """Decoder with grouped-query attention (GQA), RoPE, RMS norm, SwiGLU; clipped AdamW"""

    def layer(seed: int) -> dict[str, jax.Array]:
        return {
            "q": weight(seed, WIDTH, WIDTH).reshape(WIDTH, HEADS, SIZE),
            "kv": weight(seed, 2, WIDTH, GROUPS * SIZE).reshape(2, WIDTH, GROUPS, SIZE),
            "out": weight(seed, WIDTH, WIDTH).reshape(HEADS, SIZE, WIDTH),
            "up": weight(seed, 2, WIDTH, 2 * WIDTH),
            "down": weight(seed, 2 * WIDTH, WIDTH),
            "norms": jnp.ones((2, WIDTH)),
        }

    def attention(p: Any, x: jax.Array) -> jax.Array:
        q = rotate(jnp.einsum("btd,dhk->bthk", x, p["q"]))
        k, v = jnp.einsum("btd,sdgk->sbtgk", x, p["kv"])
        k, v = (jnp.repeat(y, HEADS // GROUPS, axis=2) for y in (rotate(k), v))
        scores = jnp.einsum("bqhk,bthk->bhqt", q, k) / np.sqrt(SIZE)
        causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        return jnp.einsum("bhqt,bthk,hkd->bqd", weights, v, p["out"])

    def loss_fn(params: Any, ids: jax.Array) -> jax.Array:
        x = params["embedding"][ids[:, :-1]]
        for p in params["layers"]:
            x = x + attention(p, rms_norm(x, p["norms"][0]))
            gate, up = jnp.einsum("btd,sdf->sbtf", rms_norm(x, p["norms"][1]), p["up"])
            x = x + (jax.nn.silu(gate) * up) @ p["down"]
        return cross_entropy(x @ params["embedding"].T, ids[:, 1:])

    params = {"embedding": weight(0, VOCAB, WIDTH), "layers": [layer(1), layer(2)]}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-3))
    return trained(loss_fn, params, TOKENS, optimizer)


def experts_by_ragged_products() -> Problem:
    """Mixture of experts (MoE) without capacities: tokens sorted, `lax.ragged_dot`"""
    experts = 4

    def mixture(p: Any, x: jax.Array) -> jax.Array:
        gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=experts)
        hidden = jax.lax.ragged_dot(jnp.repeat(x, 2, axis=0)[order], p["up"], sizes)
        out = jax.lax.ragged_dot(jax.nn.relu(hidden), p["down"], sizes)
        unsorted = jnp.zeros_like(out).at[order].set(out).reshape(-1, 2, WIDTH)
        return jnp.sum(unsorted * gates[..., None], axis=1)

    def loss_fn(params: Any, ids: jax.Array) -> jax.Array:
        x = params["embedding"][ids[:, :-1]]
        x = x + mixture(params, x.reshape(-1, WIDTH)).reshape(x.shape)
        return cross_entropy(x @ params["head"], ids[:, 1:])

    params = {
        "embedding": weight(0, VOCAB, WIDTH),
        "router": weight(1, WIDTH, experts),
        "up": weight(2, experts, WIDTH, 2 * WIDTH),
        "down": weight(3, experts, 2 * WIDTH, WIDTH),
        "head": weight(4, WIDTH, VOCAB),
    }
    return trained(loss_fn, params, TOKENS, optax.sgd(0.1, momentum=0.9))


def heads_that_speculate() -> Problem:
    """Heads for speculative decoding (Medusa): the next tokens at once, trunk frozen"""
    ahead = 3

    def step_loss(heads: Any, trunk: Any, ids: jax.Array) -> jax.Array:
        x = jax.lax.stop_gradient(jnp.tanh(trunk["embedding"][ids] @ trunk["mix"]))
        losses = [
            cross_entropy(
                (x + jax.nn.silu(x @ head))[:, : -i - 1] @ trunk["embedding"].T, ids[:, i + 1 :]
            )
            for i, head in enumerate(heads)
        ]
        return sum(0.8**i * loss for i, loss in enumerate(losses))

    def loss_fn(params: Any, ids: jax.Array) -> jax.Array:
        return step_loss(params["heads"], params["trunk"], ids)

    trunk = {"embedding": weight(0, VOCAB, WIDTH), "mix": weight(1, WIDTH, WIDTH)}
    heads = [weight(2 + i, WIDTH, WIDTH) for i in range(ahead)]
    optimizer = optax.multi_transform(
        {"heads": optax.adam(1e-2, eps=1e-3), "trunk": optax.set_to_zero()},
        {"heads": "heads", "trunk": "trunk"},
    )
    return trained(loss_fn, {"heads": heads, "trunk": trunk}, TOKENS, optimizer)


def attention_in_a_window() -> Problem:
    """`jax.nn.dot_product_attention`, causal, grouped heads, local window"""

    def loss_fn(params: Any, ids: jax.Array) -> jax.Array:
        x = params["embedding"][ids[:, :-1]]
        q = (x @ params["q"]).reshape(*x.shape[:2], HEADS, SIZE)
        k, v = ((x @ params[name]).reshape(*x.shape[:2], GROUPS, SIZE) for name in ("k", "v"))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(3, 0))
        x = x + y.reshape(x.shape)
        return cross_entropy(x @ params["head"], ids[:, 1:])

    params = {
        "embedding": weight(0, VOCAB, WIDTH),
        "q": weight(1, WIDTH, WIDTH),
        "k": weight(2, WIDTH, GROUPS * SIZE),
        "v": weight(3, WIDTH, GROUPS * SIZE),
        "head": weight(4, WIDTH, VOCAB),
    }
    return trained(loss_fn, params, TOKENS)


def low_rank_adapters() -> Problem:
    """LoRA on weights quantised to int8 with a scale a column (QLoRA)"""

    def dense(base: Any, adapter: Any, x: jax.Array) -> jax.Array:
        full = base["int8"].astype(jnp.float32) * base["scale"]
        return x @ full + x @ adapter["a"] @ adapter["b"]

    def quantised(w: jax.Array) -> dict[str, jax.Array]:
        scale = jnp.max(jnp.abs(w), axis=0) / 127
        return {"int8": jnp.round(w / scale).astype(jnp.int8), "scale": scale}

    base = {
        "embedding": weight(0, VOCAB, WIDTH),
        "up": quantised(weight(1, WIDTH, 2 * WIDTH)),
        "down": quantised(weight(2, 2 * WIDTH, WIDTH)),
    }

    def loss_fn(adapters: Any, batch: Any) -> jax.Array:
        base, ids = batch
        x = base["embedding"][ids[:, :-1]]
        x = x + dense(base["down"], adapters[1], jax.nn.gelu(dense(base["up"], adapters[0], x)))
        return cross_entropy(x @ base["embedding"].T, ids[:, 1:])

    problem = trained(
        loss_fn,
        [
            {"a": weight(3, WIDTH, 4), "b": jnp.zeros((4, 2 * WIDTH))},
            {"a": weight(4, 2 * WIDTH, 4), "b": jnp.zeros((4, WIDTH))},
        ],
        TOKENS,
    )

    def step(state: Any, ids: jax.Array) -> Any:
        adapters, loss = problem.step(state["adapters"], (state["base"], ids))
        return {"adapters": adapters, "base": state["base"]}, loss

    state = {"adapters": problem.state, "base": base}
    return Problem(step=step, state=state, calls=TOKENS)
