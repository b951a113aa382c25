"""Recurrence: scans, associative scans, loops to a fixed point, Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from oracle.problem import Problem
from programs.data import ROWS, calls, floats, integers, trained, weight

WIDTH, LENGTH, CLASSES = 8, 8, 8
SEQUENCES = calls(lambda seed: {"x": floats(seed, ROWS, LENGTH, WIDTH), "y": floats(seed, ROWS, 4)})
LABELLED = calls(
    lambda seed: {"x": floats(seed, ROWS, LENGTH, WIDTH), "y": integers(seed, CLASSES, ROWS)}
)


def labels_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def selective_state_space() -> Problem:
    """Mamba's selective state space by `lax.associative_scan`"""
    states = 4

    def mix(p: Any, x: jax.Array) -> jax.Array:
        step = jax.nn.softplus(x @ p["step"])
        inputs, outputs = x @ p["b"], x @ p["c"]
        decay = jnp.exp(-step[..., None] * jnp.exp(p["rates"]))
        entering = (step * x)[..., None] * inputs[..., None, :]

        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, h = lax.associative_scan(combine, (decay, entering), axis=1)
        return jnp.einsum("btds,bts->btd", h, outputs)

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        x = batch["x"] + mix(params, jax.nn.silu(batch["x"] @ params["into"]))
        return jnp.mean((x.mean(1) @ params["head"] - batch["y"]) ** 2)

    params = {
        "into": weight(0, WIDTH, WIDTH),
        "step": weight(1, WIDTH, WIDTH),
        "b": weight(2, WIDTH, states),
        "c": weight(3, WIDTH, states),
        "rates": jnp.log(jnp.tile(jnp.arange(1.0, states + 1), (WIDTH, 1))),
        "head": weight(4, WIDTH, 4),
    }
    return trained(loss_fn, params, SEQUENCES)


def long_short_term_memory() -> Problem:
    """LSTM by `lax.scan` over time, forwards and backwards"""

    def run(p: Any, x: jax.Array, reverse: bool) -> jax.Array:
        def cell(carry: Any, now: jax.Array) -> Any:
            h, c = carry
            gates = now @ p["x"] + h @ p["h"] + p["bias"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[0], WIDTH))
        _, hs = lax.scan(cell, (start, start), x.swapaxes(0, 1), reverse=reverse)
        return hs.swapaxes(0, 1)

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        both = [run(params[d], batch["x"], d == "backward") for d in ("forward", "backward")]
        return labels_loss(jnp.concatenate(both, -1).mean(1) @ params["head"], batch["y"])

    def cell(seed: int) -> dict[str, jax.Array]:
        return {
            "x": weight(seed, WIDTH, 4 * WIDTH),
            "h": weight(seed + 1, WIDTH, 4 * WIDTH),
            "bias": jnp.zeros(4 * WIDTH),
        }

    params = {"forward": cell(0), "backward": cell(2), "head": weight(4, 2 * WIDTH, CLASSES)}
    return trained(loss_fn, params, LABELLED)


def mixing_by_fourier_transform() -> Problem:
    """FFT: tokens mixed by `fft2` (FNet), and a filter in the frequency domain"""

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        x = batch["x"] + jnp.fft.fft2(batch["x"]).real / LENGTH
        spectrum = jnp.fft.rfft(x, axis=1) * lax.complex(params["real"], params["imaginary"])
        x = jnp.tanh(x @ params["mix"]) + jnp.fft.irfft(spectrum, n=LENGTH, axis=1)
        return labels_loss(x.mean(1) @ params["head"], batch["y"])

    params = {
        "mix": weight(0, WIDTH, WIDTH),
        "real": weight(1, LENGTH // 2 + 1, WIDTH),
        "imaginary": weight(2, LENGTH // 2 + 1, WIDTH),
        "head": weight(3, WIDTH, CLASSES),
    }
    return trained(loss_fn, params, LABELLED)


def equilibrium_by_a_while_loop() -> Problem:
    """Deep equilibrium: `while_loop` to a fixed point, implicit gradient by `custom_vjp`"""

    @jax.custom_vjp
    def equilibrium(w: jax.Array, x: jax.Array) -> jax.Array:
        def is_far(carry: Any) -> jax.Array:
            z, before, count = carry
            return (jnp.max(jnp.abs(z - before)) > 1e-5) & (count < 30)

        def again(carry: Any) -> Any:
            z, _, count = carry
            return jnp.tanh(z @ w + x), z, count + 1

        return lax.while_loop(is_far, again, (jnp.tanh(x), jnp.zeros_like(x), 0))[0]

    def forward(w: jax.Array, x: jax.Array) -> Any:
        z = equilibrium(w, x)
        return z, (w, x, z)

    def backward(kept: Any, g: jax.Array) -> Any:
        w, x, z = kept
        _, pull = jax.vjp(lambda w, x, z: jnp.tanh(z @ w + x), w, x, z)
        u = lax.fori_loop(0, 20, lambda _, u: g + pull(u)[2], g)
        return pull(u)[:2]

    equilibrium.defvjp(forward, backward)

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        z = equilibrium(0.3 * params["w"], batch["x"].mean(1) @ params["into"])
        return labels_loss(z @ params["head"], batch["y"])

    params = {
        "into": weight(0, WIDTH, WIDTH),
        "w": weight(1, WIDTH, WIDTH),
        "head": weight(2, WIDTH, CLASSES),
    }
    return trained(loss_fn, params, LABELLED)


def labels_without_alignment() -> Problem:
    """Speech: connectionist temporal classification (`optax.ctc_loss`)"""

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        logits = jnp.tanh(batch["x"] @ params["into"]) @ params["head"]
        padding = jnp.zeros(logits.shape[:2])
        labels = batch["labels"]
        return optax.ctc_loss(logits, padding, labels, jnp.zeros(labels.shape)).mean()

    params = {"into": weight(0, WIDTH, WIDTH), "head": weight(1, WIDTH, CLASSES)}
    batches = calls(
        lambda seed: {
            "x": floats(seed, ROWS, LENGTH, WIDTH),
            "labels": 1 + integers(seed, CLASSES - 1, ROWS, 3),
        }
    )
    return trained(loss_fn, params, batches)


def chain_of_tags() -> Problem:
    """Conditional random field: the forward algorithm as a `scan` of log-sum-exp"""

    def log_partition(scores: jax.Array, passing: jax.Array) -> jax.Array:
        def forward(alpha: jax.Array, now: jax.Array) -> Any:
            return jax.nn.logsumexp(alpha[:, :, None] + passing, axis=1) + now, None

        alpha, _ = lax.scan(forward, scores[:, 0], scores[:, 1:].swapaxes(0, 1))
        return jax.nn.logsumexp(alpha, axis=-1)

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        scores, tags = batch["x"] @ params["emit"], batch["tags"]
        right = jnp.take_along_axis(scores, tags[..., None], axis=2).sum((1, 2))
        right += params["pass"][tags[:, :-1], tags[:, 1:]].sum(1)
        return jnp.mean(log_partition(scores, params["pass"]) - right)

    params = {"emit": weight(0, WIDTH, CLASSES), "pass": weight(1, CLASSES, CLASSES)}
    batches = calls(
        lambda seed: {
            "x": floats(seed, ROWS, LENGTH, WIDTH),
            "tags": integers(seed, CLASSES, ROWS, LENGTH),
        }
    )
    return trained(loss_fn, params, batches)
