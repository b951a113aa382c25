"""Steps with branches and loops of every kind, as problems for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

import meshwise as mw
from oracle.problem import Problem
from oracle.step_problems import CLASSES, MLP, ROWS, WIDTH, XY, nll, plain, sgd, two_layers, weights

HIDDEN = MLP[0][1]


def _counted(loss: Callable[..., Any], params: Any) -> Problem:
    """`loss(params, batch, number of the step)`, by gradient descent; the state counts steps."""

    def step(state, batch):
        params, count = state
        value, grads = mw.value_and_grad(loss)(params, batch, count)
        return (sgd(params, grads), count + 1), value

    return Problem(step=step, state=(params, jnp.int32(0)), calls=XY)


def branch_over_rows() -> Problem:
    """Products on the batch in both branches; one adds random numbers and a mask."""

    def noisy(w, x):
        noise = jax.random.normal(jax.random.key(3), (ROWS, HIDDEN))
        mask = jnp.arange(ROWS)[:, None] % 3 > 0
        return jnp.where(mask, jnp.sin(x @ w), noise)

    def loss(p, batch, count):
        h = lax.cond(count % 2 == 0, lambda w, x: jnp.tanh(x @ w), noisy, p["w0"], batch["x"])
        return jnp.mean(nll(h @ p["w1"], batch["y"]))

    return _counted(loss, weights(*MLP))


def switch_of_three() -> Problem:
    """A branch that passes its operand on, one that makes constants, one that reduces a dim."""

    def loss(p, batch, count):
        h = jnp.tanh(batch["x"] @ p["w0"])
        h = lax.switch(
            count,
            (lambda h, v: h, lambda h, v: jnp.ones_like(h), lambda h, v: (h @ v) @ v.T / WIDTH),
            h,
            p["w1"],
        )
        return jnp.mean(nll(h @ p["w1"], batch["y"]))

    return _counted(loss, weights(*MLP))


def branch_after_the_gradient() -> Problem:
    """As a guard against bad gradients does it: the state as it was, or the new one."""

    def step(state, batch):
        params, moved = state
        value, grads = mw.value_and_grad(
            lambda p: jnp.mean(nll(two_layers(p, batch["x"]), batch["y"]))
        )(params)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))

        def update(params, moved):
            moved = jax.tree.map(lambda m, g: 0.9 * m + g, moved, grads)
            return sgd(params, moved), moved

        kept = lax.cond(norm < 0.55, update, lambda p, m: (p, m), params, moved)
        return kept, (value, norm)

    params = weights(*MLP)
    return Problem(step=step, state=(params, jax.tree.map(jnp.zeros_like, params)), calls=XY)


def loop_until_it_converges() -> Problem:
    """Power iteration on a product of weights, until a norm over split dims is small."""

    def step(state, batch):
        value, grads = mw.value_and_grad(
            lambda p: jnp.mean(nll(two_layers(p, batch["x"]), batch["y"]))
        )(state)
        matrix = state["w0"] @ state["w0"].T + jnp.eye(WIDTH)

        def body(carry):
            count, vector, _ = carry
            new = matrix @ vector
            new = new / jnp.linalg.norm(new)
            return count + 1, new, new - vector

        def goes_on(carry):
            count, _, change = carry
            return (jnp.max(jnp.abs(change)) > 1e-3) & (count < 50)

        start = jnp.ones(WIDTH) / WIDTH**0.5
        count, vector, _ = lax.while_loop(goes_on, body, (0, start, start))
        scale = vector @ matrix @ vector
        return jax.tree.map(lambda p, g: p - 0.1 * g / scale, state, grads), (value, count, scale)

    return Problem(step=step, state=weights(*MLP), calls=XY)


def loop_over_rows() -> Problem:
    """A known number of trips over features of the batch, without a gradient through it."""

    def loss(p, batch):
        def body(carry):
            i, h = carry
            return i + 2, jnp.sin(h @ p["w2"]) + 0.1 * i

        h = lax.while_loop(lambda c: c[0] < 6, body, (1, batch["x"]))[1]
        features = lax.stop_gradient(h) + batch["x"]
        return jnp.mean(nll(two_layers(p, features), batch["y"]))

    return plain(loss, weights(*MLP, (WIDTH, WIDTH)), XY)


def loop_of_each_row() -> Problem:
    """`vmap` of a loop: each row has its own number of trips, a key and a matrix in its carry."""

    def loss(p, batch):
        def of_row(row, key):
            def body(carry):
                count, h, key, outer = carry
                key, now = jax.random.split(key)
                h = 0.5 * jnp.tanh(p["w2"] @ h) + 0.01 * jax.random.normal(now, h.shape)
                return count + 1, h, key, outer + h[:, None] * h

            start = (0, row, key, jnp.zeros((WIDTH, WIDTH)))
            goes_on = lambda carry: (jnp.sum(carry[1] ** 2) > 0.3) & (carry[0] < 9)  # noqa: E731
            return lax.while_loop(goes_on, body, start)

        keys = jax.random.split(jax.random.key(0), ROWS)
        count, h, _, outer = jax.vmap(of_row)(batch["x"], keys)
        features = lax.stop_gradient(h + outer.sum(1)) + batch["x"]
        return jnp.mean(nll(two_layers(p, features), batch["y"]) * count)

    return plain(loss, weights(*MLP, (WIDTH, WIDTH)), XY)


def scans_of_every_form() -> Problem:
    """No xs, no carry, lengths 0 and 1, unrolled, reversed, nested, counters and keys carried."""

    def loss(p, batch):
        def noisy(carry, _):
            key, count, h = carry
            key, own = jax.random.split(key)
            h = h + 0.1 * jax.random.normal(own, h.shape)
            return (key, count + 1, jnp.tanh(h @ p["w1"])), None

        start = (jax.random.key(5), jnp.int32(0), batch["x"])
        (_, count, h), _ = lax.scan(noisy, start, None, length=3)
        squares = lax.map(lambda w: w @ w.T, p["w0"])
        _, sums = lax.scan(lambda c, w: (c, w.sum(0)), None, p["w0"], reverse=True)
        h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, squares, unroll=2)
        h, none = lax.scan(lambda h, w: (h @ w, h), h, p["w0"][:0])
        h, one = lax.scan(lambda h, w: (h @ w, h.sum(-1)), h, p["w0"][:1])

        def outer(h, w):
            return lax.scan(lambda h, v: (jnp.sin(h * v) @ w, None), h, sums)[0], None

        h, _ = lax.scan(outer, h, p["w0"])
        total = jnp.mean(one) + jnp.sum(none) + count
        return jnp.mean(nll(h, batch["y"])) + 1e-2 * total

    return plain(loss, weights((3, WIDTH, WIDTH), (WIDTH, WIDTH)), XY)


def branches_and_loops_in_loops() -> Problem:
    """A cond in a scan, a while in a scan, a scan in a cond."""

    def loss(p, batch, count):
        def layer(carry, xs):
            i, h = carry
            w, flag = xs
            h = lax.cond(flag > 0, lambda w, h: jnp.tanh(h @ w), lambda w, h: h * 0.5, w, h)
            scale = lax.while_loop(
                lambda c: c[1] > 1.5, lambda c: (c[0] + 1, c[1] / 2), (i, jnp.sum(w**2))
            )[1]
            return (i + 1, h * lax.stop_gradient(scale)), jnp.sum(h, -1)

        flags = jnp.array([1, 0, 1])
        (_, h), sums = lax.scan(layer, (0, batch["x"]), (p["w0"], flags))

        def scanned(h, w):
            return lax.scan(lambda h, w: (jnp.sin(h @ w), None), h, w)[0]

        h = lax.cond(count == 1, scanned, lambda h, w: h @ w[0], h, p["w0"])
        return jnp.mean(nll(h @ p["w1"], batch["y"])) + 1e-2 * jnp.mean(sums)

    return _counted(loss, weights((3, WIDTH, WIDTH), (WIDTH, CLASSES)))


def solvers_and_prefixes() -> Problem:
    """`custom_linear_solve`, `associative_scan`, `fori_loop`, a barrier inside of a loop."""

    def loss(p, batch):
        matrix = p["w2"] @ p["w2"].T + jnp.eye(WIDTH)

        def solve(_, b):
            return jnp.linalg.inv(matrix) @ b

        w = lax.custom_linear_solve(lambda v: matrix @ v, p["w2"], solve, symmetric=True)
        prefix = lax.associative_scan(jnp.add, batch["x"] @ w, axis=1)

        def body(i, h):
            h, w = lax.optimization_barrier((h, p["w2"]))
            return jnp.tanh(h @ w) + i

        h = lax.fori_loop(0, 3, body, prefix)
        return jnp.mean(nll(two_layers(p, h), batch["y"]))

    return plain(loss, weights(*MLP, (WIDTH, WIDTH)), XY)


def _optax(optimizer: Any) -> Problem:
    def step(state, batch):
        params, opt = state
        value, grads = mw.value_and_grad(
            lambda p: jnp.mean(nll(two_layers(p, batch["x"]), batch["y"]))
        )(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    params = weights(*MLP)
    return Problem(step=step, state=(params, optimizer.init(params)), calls=XY)


def gradients_of_several_steps() -> Problem:
    return _optax(optax.MultiSteps(optax.adam(0.1, eps=1e-3), 2, accumulator_dtype=jnp.float64))


def updates_that_are_finite() -> Problem:
    return _optax(optax.apply_if_finite(optax.adam(0.1, eps=1e-3), max_consecutive_errors=2))


CONTROL_FLOW = (
    branch_over_rows,
    switch_of_three,
    branch_after_the_gradient,
    loop_until_it_converges,
    loop_over_rows,
    scans_of_every_form,
    branches_and_loops_in_loops,
    solvers_and_prefixes,
    gradients_of_several_steps,
    updates_that_are_finite,
)
