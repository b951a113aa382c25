"""Diffrax, Lineax and Optimistix: equations solved inside of the loss."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optax
import optimistix

from oracle.problem import Problem
from programs.data import ROWS, calls, floats, trained, weight

WIDTH, HIDDEN = 8, 16
PAIRS = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": floats(seed + 1, ROWS, WIDTH)})


def neural_differential_equation() -> Problem:
    """Neural ODE (Diffrax): Tsit5, step sizes by error, gradients through the solver"""
    model = eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 1, activation=jax.nn.tanh, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        field = eqx.combine(params, static)

        def solve(start: jax.Array) -> jax.Array:
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, args: field(y)),
                diffrax.Tsit5(),
                t0=0.0,
                t1=1.0,
                dt0=0.1,
                y0=start,
                stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3),
                max_steps=16,
            )
            return solution.ys[0]

        return jnp.mean((jax.vmap(solve)(batch["x"]) - batch["y"]) ** 2)

    return trained(loss_fn, params, PAIRS, optax.sgd(0.1, momentum=0.9))


def neural_stochastic_equation() -> Problem:
    """Neural SDE (Diffrax): a virtual Brownian tree, keys by row, fixed steps"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        def solve(start: jax.Array, key: jax.Array) -> jax.Array:
            path = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(WIDTH,), key=key)
            terms = diffrax.MultiTerm(
                diffrax.ODETerm(lambda t, y, args: jnp.tanh(y @ p["drift"])),
                diffrax.ControlTerm(
                    lambda t, y, args: lineax.DiagonalLinearOperator(p["noise"]), path
                ),
            )
            solution = diffrax.diffeqsolve(
                terms, diffrax.Euler(), t0=0.0, t1=1.0, dt0=0.25, y0=start, max_steps=8
            )
            return solution.ys[0]

        ends = jax.vmap(solve)(batch["x"], jax.random.split(jax.random.key(0), ROWS))
        return jnp.mean((ends - batch["y"]) ** 2)

    params = {"drift": weight(0, WIDTH, WIDTH), "noise": jnp.full(WIDTH, 0.1)}
    return trained(loss_fn, params, PAIRS)


def ridge_regression_head() -> Problem:
    """Lineax: a ridge regression on learned features, solved by Cholesky inside the loss"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        features = jnp.tanh(batch["x"] @ p["features"])
        normal = features.T @ features + 0.1 * jnp.eye(HIDDEN)
        operator = lineax.MatrixLinearOperator(normal, lineax.positive_semidefinite_tag)

        def column(y: jax.Array) -> jax.Array:
            return lineax.linear_solve(operator, features.T @ y, lineax.Cholesky()).value

        head = jax.vmap(column, in_axes=1, out_axes=1)(batch["y"])
        return jnp.mean((features @ head - batch["y"]) ** 2)

    return trained(loss_fn, {"features": weight(0, WIDTH, HIDDEN)}, PAIRS)


def root_inside_the_loss() -> Problem:
    """Optimistix: a layer that is a root (Newton's method), differentiated implicitly"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        def layer(x: jax.Array) -> jax.Array:
            def equation(z: jax.Array, x: jax.Array) -> jax.Array:
                return z - jnp.tanh(0.3 * p["w"] @ z + x)

            solver = optimistix.Newton(rtol=1e-5, atol=1e-5)
            return optimistix.root_find(equation, solver, x, args=x, max_steps=16).value

        return jnp.mean((jax.vmap(layer)(batch["x"]) @ p["head"] - batch["y"]) ** 2)

    params = {"w": weight(0, WIDTH, WIDTH), "head": weight(1, WIDTH, WIDTH)}
    return trained(loss_fn, params, PAIRS)


def curve_fitted_inside_the_loss() -> Problem:
    """Optimistix: least squares by Levenberg-Marquardt as an inner problem"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        times = jnp.linspace(0.0, 1.0, WIDTH)

        def fit(x: jax.Array) -> jax.Array:
            def residuals(curve: jax.Array, x: jax.Array) -> jax.Array:
                missed = curve[0] * jnp.exp(-curve[1] * times) - x
                return jnp.concatenate([missed, 0.5 * (curve - 1)])

            solver = optimistix.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
            found = optimistix.least_squares(
                residuals, solver, jnp.ones(2), args=x @ p["w"], max_steps=32, throw=False
            )
            return found.value

        return jnp.mean((jax.vmap(fit)(batch["x"]) @ p["head"] - batch["y"]) ** 2)

    params = {"w": weight(0, WIDTH, WIDTH), "head": weight(1, 2, WIDTH)}
    return trained(loss_fn, params, PAIRS, optax.sgd(0.01))


def orbits_saved_at_times() -> Problem:
    """Diffrax: values saved at many times (`SaveAt`), Heun's method, `DirectAdjoint`"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        def solve(start: jax.Array) -> jax.Array:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, args: jnp.tanh(y @ p["field"]) - 0.1 * y),
                diffrax.Heun(),
                t0=0.0,
                t1=1.0,
                dt0=0.25,
                y0=start,
                saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 3)),
                adjoint=diffrax.DirectAdjoint(),
                max_steps=8,
            ).ys

        return jnp.mean((jax.vmap(solve)(batch["x"]) - batch["y"][:, None]) ** 2)

    return trained(loss_fn, {"field": weight(0, WIDTH, WIDTH)}, PAIRS)


def system_solved_without_a_matrix() -> Problem:
    """Lineax: conjugate gradients on a function (`FunctionLinearOperator`)"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        shape = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)

        def smooth(y: jax.Array) -> jax.Array:
            def product(v: jax.Array) -> jax.Array:
                return v + p["w"].T @ (p["w"] @ v)

            operator = lineax.FunctionLinearOperator(
                product, shape, lineax.positive_semidefinite_tag
            )
            solver = lineax.CG(rtol=1e-6, atol=1e-6, max_steps=16)
            return lineax.linear_solve(operator, y, solver, throw=False).value

        return jnp.mean((jax.vmap(smooth)(batch["x"]) @ p["head"] - batch["y"]) ** 2)

    params = {"w": 0.3 * weight(0, WIDTH, WIDTH), "head": weight(1, WIDTH, WIDTH)}
    return trained(loss_fn, params, PAIRS)


def fixed_point_inside_the_loss() -> Problem:
    """Optimistix: a layer that is a fixed point, found by iteration, differentiated implicitly"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        def layer(x: jax.Array) -> jax.Array:
            def again(z: jax.Array, x: jax.Array) -> jax.Array:
                return jnp.tanh(0.3 * p["w"] @ z + x)

            solver = optimistix.FixedPointIteration(rtol=1e-6, atol=1e-6)
            return optimistix.fixed_point(again, solver, x, args=x, throw=False).value

        return jnp.mean((jax.vmap(layer)(batch["x"]) @ p["head"] - batch["y"]) ** 2)

    params = {"w": weight(0, WIDTH, WIDTH), "head": weight(1, WIDTH, WIDTH)}
    return trained(loss_fn, params, PAIRS)
