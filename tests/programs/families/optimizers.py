"""Steps whose update is the point: second order, several gradients, several models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers, weight

WIDTH, HIDDEN, CLASSES = 8, 16, 8
LABELLED = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": integers(seed, CLASSES, ROWS)})
PARAMS = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, CLASSES)}


def perceptron(p: Any, x: jax.Array) -> jax.Array:
    """Two layers."""
    return jnp.tanh(x @ p["first"]) @ p["second"]


def loss_of(p: Any, batch: Any) -> jax.Array:
    """Cross-entropy of the two layers."""
    logits = perceptron(p, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def sharpness_aware() -> Problem:
    """SAM: the gradient at the worst point nearby, two gradients a step"""

    def step(params: Any, batch: Any) -> Any:
        grads = jax.grad(loss_of)(params, batch)
        norm = optax.tree.norm(grads)
        worst = jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, grads)
        loss, grads = jax.value_and_grad(loss_of)(worst, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    return Problem(step=step, state=PARAMS, calls=LABELLED)


def limited_memory_newton() -> Problem:
    """L-BFGS of Optax with its line search: the loss is called in a `while_loop`"""
    optimizer = optax.lbfgs(linesearch=optax.scale_by_zoom_linesearch(4))

    def step(state: Any, batch: Any) -> Any:
        params, opt = state

        def loss_fn(params: Any) -> jax.Array:
            return loss_of(params, batch)

        loss, grads = optax.value_and_grad_from_state(loss_fn)(params, state=opt)
        updates, opt = optimizer.update(
            grads, opt, params, value=loss, grad=grads, value_fn=loss_fn
        )
        return (optax.apply_updates(params, updates), opt), loss

    return Problem(step=step, state=(PARAMS, optimizer.init(PARAMS)), calls=LABELLED)


def orthogonalised_momentum() -> Problem:
    """Muon by hand: Newton-Schulz iterations in a `fori_loop` on each momentum"""

    def orthogonal(m: jax.Array) -> jax.Array:
        def iterate(_: Any, x: jax.Array) -> jax.Array:
            square = x @ x.T
            return 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x

        return jax.lax.fori_loop(0, 5, iterate, m / (jnp.linalg.norm(m) + 1e-7))

    def step(state: Any, batch: Any) -> Any:
        params, momenta = state
        loss, grads = mw.value_and_grad(loss_of)(params, batch)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
        params = jax.tree.map(lambda p, m: p - 0.02 * orthogonal(m), params, momenta)
        return (params, momenta), loss

    return Problem(step=step, state=(PARAMS, jax.tree.map(jnp.zeros_like, PARAMS)), calls=LABELLED)


def preconditioned_by_matrix_roots() -> Problem:
    """Shampoo-like: inverse fourth roots of both statistics by `eigh`"""

    def root(statistic: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(statistic + 1e-2 * jnp.eye(len(statistic)))
        return (vectors * jnp.maximum(values, 1e-2) ** -0.25) @ vectors.T

    def step(state: Any, batch: Any) -> Any:
        params, statistics = state
        loss, grads = mw.value_and_grad(loss_of)(params, batch)
        new = {
            name: (0.9 * rows + g @ g.T, 0.9 * columns + g.T @ g)
            for name, g in grads.items()
            for rows, columns in [statistics[name]]
        }
        params = {
            name: p - 0.05 * root(new[name][0]) @ grads[name] @ root(new[name][1])
            for name, p in params.items()
        }
        return (params, new), loss

    start = {name: tuple(jnp.eye(size) for size in p.shape) for name, p in PARAMS.items()}
    return Problem(step=step, state=(PARAMS, start), calls=LABELLED)


def curvature_by_conjugate_gradients() -> Problem:
    """Gauss-Newton: products with the curvature (`jvp`, `vjp`) inside conjugate gradients"""

    def step(params: Any, batch: Any) -> Any:
        def outputs(p: Any) -> jax.Array:
            return perceptron(p, batch["x"])

        def product(v: Any) -> Any:
            logits, moved = jax.jvp(outputs, (params,), (v,))
            probs = jax.nn.softmax(logits)
            curved = probs * (moved - jnp.sum(probs * moved, -1, keepdims=True)) / len(logits)
            (back,) = jax.vjp(outputs, params)[1](curved)
            return jax.tree.map(lambda b, v: b + 0.1 * v, back, v)

        loss, grads = mw.value_and_grad(loss_of)(params, batch)
        direction, _ = jax.scipy.sparse.linalg.cg(product, grads, maxiter=5)
        return jax.tree.map(lambda p, d: p - 0.5 * d, params, direction), loss

    return Problem(step=step, state=PARAMS, calls=LABELLED)


def learning_to_adapt() -> Problem:
    """MAML: gradients through inner gradient steps, tasks by `vmap`"""
    tasks, shots = 8, 4

    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ p["first"]) @ p["second"] - y) ** 2)

    def adapted(p: Any, x: jax.Array, y: jax.Array) -> Any:
        for _ in range(2):
            p = jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p, x, y))
        return p

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        def of_task(task: Any) -> jax.Array:
            return loss(adapted(p, task["x"], task["y"]), task["x_new"], task["y_new"])

        return jax.vmap(of_task)(batch).mean()

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        value, grads = mw.value_and_grad(loss_fn)(params, batch)
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), value

    params = {"first": weight(0, 2, HIDDEN), "second": weight(1, HIDDEN, 1)}
    batches = calls(
        lambda seed: {
            name: floats(seed + i, tasks, shots, 2 if name.startswith("x") else 1)
            for i, name in enumerate(("x", "y", "x_new", "y_new"))
        }
    )
    return Problem(step=step, state=(params, ADAM.init(params)), calls=batches)


def ensemble_of_models() -> Problem:
    """Ensemble by `vmap`: parameters and optimizers stacked, each member its own gradient"""
    members = 4

    def step(state: Any, batch: Any) -> Any:
        def of_member(params: Any, opt: Any) -> Any:
            loss, grads = mw.value_and_grad(loss_of)(params, batch)
            updates, opt = ADAM.update(grads, opt)
            return optax.apply_updates(params, updates), opt, loss

        params, opt, losses = jax.vmap(of_member)(*state)
        return (params, opt), losses

    params = {
        "first": weight(0, members, WIDTH, HIDDEN),
        "second": weight(1, members, HIDDEN, CLASSES),
    }
    state = (params, jax.vmap(ADAM.init)(params))
    return Problem(step=step, state=state, calls=LABELLED)


def private_gradients() -> Problem:
    """DP-SGD: gradients of single rows by `vmap(grad)`, clipped, with noise"""

    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, now = jax.random.split(key)

        def of_row(x: jax.Array, y: jax.Array) -> Any:
            grads = jax.grad(loss_of)(params, {"x": x[None], "y": y[None]})
            share = jnp.minimum(1.0, 0.5 / optax.tree.norm(grads))
            return jax.tree.map(lambda g: share * g, grads)

        clipped = jax.vmap(of_row)(batch["x"], batch["y"])
        keys = dict(zip(params, jax.random.split(now, len(params)), strict=True))
        grads = {
            name: g.mean(0) + 0.01 * jax.random.normal(keys[name], g.shape[1:])
            for name, g in clipped.items()
        }
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        return (params, key), loss_of(params, batch)

    return Problem(step=step, state=(PARAMS, jax.random.key(0)), calls=LABELLED)
