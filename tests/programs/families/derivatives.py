"""Derivatives of one's own, and derivatives of derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from oracle.problem import Problem
from programs.data import ROWS, calls, floats, integers, trained, weight

WIDTH, HIDDEN, CLASSES = 8, 16, 8


def gradient_reversal() -> Problem:
    """`custom_vjp`: domain adversarial training through a layer that turns gradients round"""

    @jax.custom_vjp
    def reverse(x: jax.Array) -> jax.Array:
        return x

    reverse.defvjp(lambda x: (x, None), lambda _, g: (-0.3 * g,))

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        features = jax.nn.relu(batch["x"] @ p["features"])
        domain = (reverse(features) @ p["domain"])[:, 0]
        right = optax.softmax_cross_entropy_with_integer_labels(features @ p["head"], batch["y"])
        return jnp.mean(right + optax.sigmoid_binary_cross_entropy(domain, batch["domain"]))

    params = {
        "features": weight(0, WIDTH, HIDDEN),
        "domain": weight(1, HIDDEN, 1),
        "head": weight(2, HIDDEN, CLASSES),
    }
    batches = calls(
        lambda seed: {
            "x": floats(seed, ROWS, WIDTH),
            "y": integers(seed, CLASSES, ROWS),
            "domain": integers(seed + 1, 2, ROWS).astype("float32"),
        }
    )
    return trained(loss_fn, params, batches)


def stable_roots() -> Problem:
    """`custom_jvp`: a norm whose derivative at zero is zero, in a triplet loss"""

    @jax.custom_jvp
    def norm(x: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum(x * x, -1))

    @norm.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (moved,) = primals, tangents
        out = norm(x)
        safe = jnp.where(out > 0, out, 1.0)
        return out, jnp.where(out > 0, jnp.sum(x * moved, -1) / safe, 0.0)

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        anchor, near, far = (jnp.tanh(batch[name] @ p["w"]) for name in ("anchor", "near", "far"))
        return jnp.mean(jax.nn.relu(norm(anchor - near) - norm(anchor - far) + 1.0))

    batches = calls(
        lambda seed: {
            name: floats(seed + i, ROWS, WIDTH) for i, name in enumerate(("anchor", "near", "far"))
        }
    )
    return trained(loss_fn, {"w": weight(0, WIDTH, HIDDEN)}, batches)


def physics_informed() -> Problem:
    """PINN: second derivatives of the network in its loss (`grad` of `grad`, `jvp`, `vmap`)"""

    def field(p: Any, x: jax.Array, t: jax.Array) -> jax.Array:
        h = jnp.tanh(jnp.stack([x, t]) @ p["first"] + p["bias"])
        return (jnp.tanh(h @ p["second"]) @ p["third"])[0]

    def residual(p: Any, x: jax.Array, t: jax.Array) -> jax.Array:
        u_t = jax.grad(field, 2)(p, x, t)
        u_xx = jax.grad(jax.grad(field, 1), 1)(p, x, t)
        return u_t - 0.1 * u_xx

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        inside = jax.vmap(residual, (None, 0, 0))(p, batch["x"], batch["t"])
        start = jax.vmap(field, (None, 0, None))(p, batch["x"], jnp.float32(0))
        return jnp.mean(inside**2) + jnp.mean((start - jnp.sin(batch["x"])) ** 2)

    params = {
        "first": weight(0, 2, HIDDEN),
        "bias": jnp.zeros(HIDDEN),
        "second": weight(1, HIDDEN, HIDDEN),
        "third": weight(2, HIDDEN, 1),
    }
    batches = calls(lambda seed: {"x": floats(seed, ROWS), "t": floats(seed + 1, ROWS)})
    return trained(loss_fn, params, batches)


def mechanics_by_jacobians() -> Problem:
    """Hamiltonian network: vector field by `jacrev`, divergence by `jacfwd`, `linearize`"""

    def energy(p: Any, z: jax.Array) -> jax.Array:
        return (jax.nn.softplus(z @ p["first"]) @ p["second"])[0]

    def flow(p: Any, z: jax.Array) -> jax.Array:
        by_q, by_p = jnp.split(jax.jacrev(energy, 1)(p, z), 2)
        return jnp.concatenate([by_p, -by_q])

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        def of_row(z: jax.Array, dz: jax.Array) -> jax.Array:
            moved, push = jax.linearize(lambda z: flow(p, z), z)
            divergence = jnp.trace(jax.jacfwd(lambda z: flow(p, z))(z))
            return jnp.sum((moved - dz) ** 2) + divergence**2 + 0.1 * jnp.sum(push(dz) ** 2)

        return jax.vmap(of_row)(batch["z"], batch["dz"]).mean()

    params = {"first": weight(0, 4, HIDDEN), "second": weight(1, HIDDEN, 1)}
    batches = calls(lambda seed: {"z": floats(seed, ROWS, 4), "dz": floats(seed + 1, ROWS, 4)})
    return trained(loss_fn, params, batches)


def gaussian_process() -> Problem:
    """Gaussian process: marginal likelihood by `cholesky` and triangular solves, deep kernel"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        z = jnp.tanh(batch["x"] @ p["features"])
        distances = jnp.sum((z[:, None] - z[None]) ** 2, -1)
        kernel = jnp.exp(-0.5 * distances / jnp.exp(p["scale"]))
        kernel += jnp.exp(p["noise"]) * jnp.eye(len(z))
        factor = jnp.linalg.cholesky(kernel)
        solved = jax.scipy.linalg.cho_solve((factor, True), batch["y"])
        return 0.5 * batch["y"] @ solved + jnp.sum(jnp.log(jnp.diagonal(factor)))

    params = {
        "features": weight(0, WIDTH, HIDDEN),
        "scale": jnp.float32(0.0),
        "noise": jnp.float32(-1.0),
    }
    batches = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": floats(seed + 1, ROWS)})
    return trained(loss_fn, params, batches, optax.sgd(0.01))
