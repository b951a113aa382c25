"""`mw.eqx`: a step of Equinox modules as under `eqx.filter_jit`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equinox import filter_value_and_grad

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import LossError, TraceError

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


class Net(eqx.Module):
    """Leaves that are functions, numbers and flags."""

    mlp: eqx.nn.MLP
    drop: eqx.nn.Dropout

    def __call__(self, x: Any, key: Any) -> Any:
        return self.mlp(self.drop(x, key=key))


def made(rate: float = 0.25) -> tuple[Net, Any]:
    model = Net(eqx.nn.MLP(8, 4, 8, 3, key=jax.random.key(0)), eqx.nn.Dropout(rate))
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))


def step_with(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    def step(model: Any, opt_state: Any, x: Any, y: Any, key: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            return jnp.mean((jax.vmap(model)(x, jax.random.split(key, len(x))) - y) ** 2)

        loss, grads = value_and_grad(loss_fn)(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
        return eqx.apply_updates(model, updates), opt_state, loss

    return step


documented = step_with(eqx.filter_value_and_grad)


def trained(step: Any) -> tuple[Net, list[float]]:
    model, opt_state = made()
    losses: list[float] = []
    for number in range(3):
        model, opt_state, loss = step(model, opt_state, X, Y, jax.random.key(number))
        losses.append(float(loss))
    return model, losses


@pytest.mark.filterwarnings("ignore::meshwise.errors.PlanWarning")
@pytest.mark.parametrize(
    ("value_and_grad", "options"),
    [
        (eqx.filter_value_and_grad, {"method": mw.Zero3()}),
        (eqx.filter_value_and_grad, {"num_microbatches": 2}),
        (
            mw.eqx.filter_value_and_grad,
            {"method": mw.Auto(stages=2, schedule="1f1b"), "num_microbatches": 4},
        ),
    ],
)
def test_a_step_of_modules_equals_filter_jit(
    value_and_grad: Callable[..., Any], options: dict[str, Any]
) -> None:
    step = mw.eqx.parallelize(
        step_with(value_and_grad), cluster=cpu_cluster(4), batch_argnums=(2, 3), **options
    )
    wanted, losses = trained(eqx.filter_jit(documented))
    model, found = trained(step)

    assert found == pytest.approx(losses, rel=1e-5)
    assert isinstance(model, Net)
    assert model.mlp.activation is wanted.mlp.activation
    assert model.drop.p == 0.25
    for mine, other in zip(jax.tree.leaves(model), jax.tree.leaves(wanted), strict=True):
        if eqx.is_array(mine):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert len(step.plans) == 1


def test_another_constant_is_another_step() -> None:
    def evaluated(model: Any, x: Any, key: Any) -> Any:
        return jnp.mean(jax.vmap(model)(x, jax.random.split(key, len(x))))

    step = mw.eqx.parallelize(evaluated, method=mw.DataParallel(), cluster=cpu_cluster(4))
    for rate in (0.0, 0.5):
        model = made(rate)[0]
        wanted = eqx.filter_jit(evaluated)(model, X, jax.random.key(0))
        np.testing.assert_allclose(step(model, X, jax.random.key(0)), wanted, rtol=1e-5)
    assert len(step.plans) == 2


def test_leaves_that_are_no_arrays_are_told_of() -> None:
    step = mw.parallelize(documented, batch_argnums=(2, 3), cluster=cpu_cluster(4))
    with pytest.raises(TraceError, match=r"mlp\.activation .*; use mw\.eqx\.parallelize"):
        step.plan(*made(), X, Y, jax.random.key(0))

    class Odd(eqx.Module):
        limits: Any

    odd = Odd(limits={"low": bytearray(1)})
    with pytest.raises(TraceError, match="leaf .* of type bytearray, which is no array and cannot"):
        mw.eqx.parallelize(lambda model, x: x, cluster=cpu_cluster(4)).plan(odd, X)


def test_gradients_are_those_of_equinox() -> None:
    def loss(model: Any, x: Any) -> Any:
        value = jnp.mean(jax.vmap(model)(x) ** 2)
        return value, 2 * value

    model = made()[0].mlp
    found, wanted = (
        eqx.filter_jit(of.filter_grad(loss, has_aux=True))(model, X) for of in (mw.eqx, eqx)
    )
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


def test_modules_are_planned_from_shapes_and_born_sharded() -> None:
    def step(model: Any, x: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), value

    def make(key: Any) -> Any:
        return eqx.nn.MLP(8, 8, 32, 2, key=key)

    parallel = mw.eqx.parallelize(step, method=mw.Zero3(), cluster=cpu_cluster(4))
    shapes = eqx.filter_eval_shape(make, jax.random.key(0))
    assert parallel.plan(shapes, X).num_meshes == 1
    model = parallel.init(make, jax.random.key(0), X)
    assert not model.layers[0].weight.sharding.is_fully_replicated
    model, value = parallel(model, X)
    wanted, expected = eqx.filter_jit(step)(make(jax.random.key(0)), X)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(model.layers[0].weight, wanted.layers[0].weight, rtol=1e-4)
    assert len(parallel.plans) == 1


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.adam(1e-2)])
def test_the_state_of_an_optimizer_is_no_batch(optimizer: Any) -> None:
    def create(key: Any) -> Any:
        model = eqx.nn.MLP(8, 8, 32, 2, key=key)
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def step(model: Any, opt_state: Any, batch: Any) -> Any:
        def loss_fn(model: Any, x: Any) -> Any:
            return jnp.mean(jax.vmap(model)(x) ** 2)

        loss, grads = mw.eqx.filter_value_and_grad(loss_fn)(model, batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    made = create(jax.random.key(0))
    plans: list[mw.Plan] = []
    for more in ({}, {"batch_argnums": (2,)}):
        parallel = mw.eqx.parallelize(step, cluster=cpu_cluster(4), num_microbatches=2, **more)
        plans.append(parallel.plan(*made, X))
    assert plans[0] == plans[1]
    parallel = mw.eqx.parallelize(step, method=mw.Zero3(), cluster=cpu_cluster(4))
    model, opt_state = parallel.init(create, jax.random.key(0), X)
    assert not model.layers[0].weight.sharding.is_fully_replicated
    *_, loss = parallel(model, opt_state, X)
    np.testing.assert_allclose(loss, step(made[0], made[1], X)[2], rtol=1e-5)
    assert isinstance(parallel.init(create, jax.random.key(0))[0], eqx.nn.MLP)
    assert len(parallel.plans) == 1


def squared(model: Any, x: Any) -> Any:
    return jnp.mean(jax.vmap(model)(x) ** 2)


@filter_value_and_grad
def of_decorated(model: Any, x: Any) -> Any:
    return squared(model, x)


@partial(eqx.filter_value_and_grad, has_aux=True)
def of_partial(model: Any, x: Any) -> Any:
    return squared(model, x), x


def with_bare_name(model: Any, x: Any) -> Any:
    return filter_value_and_grad(squared)(model, x)


def with_decorated(model: Any, x: Any) -> Any:
    return of_decorated(model, x)


def with_partial(model: Any, x: Any) -> Any:
    (value, _), grads = of_partial(model, x)
    return value, grads


def with_gradient_of_arrays(model: Any, x: Any) -> Any:
    return mw.value_and_grad(squared)(model, x)


def with_jax(model: Any, x: Any) -> Any:
    return jax.value_and_grad(squared)(model, x)


def with_jit(model: Any, x: Any) -> Any:
    return mw.eqx.filter_value_and_grad(jax.jit(squared))(model, x)


@pytest.mark.parametrize(
    ("both", "error", "text"),
    [
        (
            with_bare_name,
            TraceError,
            r"write `return mw\.eqx\.filter_value_and_grad\(squared\)\(model, x\)`, or use one",
        ),
        (
            with_decorated,
            TraceError,
            r"at test_eqx\.py:\d+: `@filter_value_and_grad`; only .*: write "
            r"`@mw\.eqx\.filter_value_and_grad`, or use one stage",
        ),
        (
            with_partial,
            TraceError,
            r"write `@partial\(mw\.eqx\.filter_value_and_grad, has_aux=True\)`, or use one stage",
        ),
        (
            with_gradient_of_arrays,
            LossError,
            r"squared is differentiated with respect to a \w+, but only real and complex "
            "numbers have a gradient; use mw.eqx.filter_value_and_grad, or choose the others with "
            "argnums",
        ),
        (
            with_jax,
            TraceError,
            r"step at test_eqx\.py:\d+ \(with_jax\): .*not a valid JAX type; .* differentiate it "
            r"with mw\.eqx\.filter_value_and_grad, and compile parts of the step with "
            r"eqx\.filter_jit in place of jax\.jit",
        ),
        (with_jit, TraceError, r"step at test_eqx\.py:\d+ .* eqx\.filter_jit in place of jax\.jit"),
    ],
)
def test_gradients_of_modules_name_those_of_equinox(both: Any, error: Any, text: str) -> None:
    def step(model: Any, x: Any) -> Any:
        value, grads = both(model, x)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), value

    # An activation under jax.jit, as many functions of jax.nn are.
    model = eqx.nn.MLP(8, 8, 8, 2, activation=jax.nn.gelu, key=jax.random.key(0))
    parallel = mw.eqx.parallelize(
        step,
        method=mw.Auto(stages=2, schedule="1f1b"),
        cluster=mw.Cluster.virtual("2 cpu"),
        num_microbatches=2,
    )
    with pytest.raises(error, match=text):
        parallel.plan(model, X)
