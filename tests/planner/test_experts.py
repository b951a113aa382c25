"""Experts without capacities: the search splits them where their weights are large."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import meshwise as mw
from oracle.parallel import CLUSTER

# No dim of a matrix can be cut in eight.
EXPERTS, WIDTH, ROWS = 64, 250, 64


def step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> jax.Array:
        return (lax.ragged_dot(batch["rows"], weights, batch["sizes"]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(weights)
    return weights - grads, value


def test_experts_stay_where_they_are_and_rows_go_to_them() -> None:
    weights = jax.ShapeDtypeStruct((EXPERTS, WIDTH, WIDTH), jnp.float32)
    batch = {
        "rows": jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
        "sizes": jax.ShapeDtypeStruct((EXPERTS,), jnp.int32),
    }
    parallel = mw.parallelize(
        step, method=mw.IntraOp((8,)), cluster=CLUSTER, batch_argnums=(1,), batch_dims=None
    )
    plan = parallel.plan(weights, batch)
    (layout,) = [a.layout for a in plan.stages[0].arguments if a.shape == weights.shape]
    assert layout.dims[0] == (0,)
    # Weights and gradients stay; rows and scalars move.
    assert sum(c.count * c.num_bytes for c in plan.collectives) <= 4 * ROWS * WIDTH * 4


def test_groups_that_the_mesh_does_not_divide_are_padded() -> None:
    # Seven gradients, each of them multiplied by itself afterwards, as Muon does.
    def muon(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> jax.Array:
            return (lax.ragged_dot(batch["rows"], weights, batch["sizes"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(weights)
        squares = jnp.einsum("gab,gcb->gac", grads, grads)
        return weights - jnp.einsum("gac,gcb->gab", squares, grads), value

    keys = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(keys[0], (7, 128, 512))
    batch = {
        "rows": jax.random.normal(keys[1], (ROWS, 128)),
        "sizes": jnp.array([9, 0, 20, 3, 17, 1, 14], jnp.int32),
    }
    want = jax.jit(muon)(weights, batch)
    parallel = mw.parallelize(
        muon, method=mw.IntraOp((8,)), batch_argnums=(1,), batch_dims=None, donate_argnums=()
    )
    assert [dim.size for dim in parallel.plan(weights, batch).padding.dims] == [7]
    for got, expected in zip(parallel(weights, batch), want, strict=True):
        assert jnp.allclose(got, expected, rtol=1e-4, atol=1e-5)


def _gated(rows: jax.Array, weights: Any, sizes: jax.Array) -> jax.Array:
    gate, up = (lax.ragged_dot(rows, weights[name], sizes) for name in ("gate", "up"))
    return lax.ragged_dot(jnp.log(jnp.abs(gate)) * up, weights["down"], sizes)


def _gated_weights(groups: int, width: int, inner: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}
    return {
        name: jax.random.normal(key, (groups, *shape)) / width**0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def test_groups_of_experts_are_padded_and_empty_ones_add_nothing() -> None:
    def step(weights: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(
            lambda w: (_gated(batch["rows"], w, batch["sizes"]) ** 2).mean()
        )(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    weights = _gated_weights(7, 121, 363)
    batch = {
        "rows": jax.random.normal(jax.random.key(1), (ROWS, 121)),
        "sizes": jnp.array([9, 0, 20, 3, 17, 1, 14], jnp.int32),
    }
    want = jax.jit(step)(weights, batch)
    parallel = mw.parallelize(
        step, method=mw.IntraOp((8,)), batch_argnums=(1,), batch_dims=None, donate_argnums=()
    )
    plan = parallel.plan(weights, batch)
    assert plan.joins_experts
    assert 7 in [dim.size for dim in plan.padding.dims]
    for got, expected in zip(
        jax.tree.leaves(parallel(weights, batch)), jax.tree.leaves(want), strict=True
    ):
        assert jnp.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_gradients_by_jax_leave_products_as_they_are() -> None:
    """Gradients of matrices contract two dims where each sequence has groups of its own."""
    numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), [1], [0])

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> jax.Array:
            product = partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
            inner = jnp.tanh(product(batch["rows"], weights["up"], batch["sizes"]))
            return (product(inner, weights["down"], batch["sizes"]) ** 2).mean()

        return jax.value_and_grad(loss)(weights)

    weights = _gated_weights(4, 8, 16)
    batch = {
        "rows": jax.random.normal(jax.random.key(1), (8, 6, 8)),
        "sizes": jnp.array([[1, 0, 3, 2], [6, 0, 0, 0]] * 4, jnp.int32),
    }
    parallel = mw.parallelize(step, method=mw.IntraOp((8,)), batch_argnums=(1,), donate_argnums=())
    assert not parallel.plan(weights, batch).joins_experts
    want = jax.jit(step)(weights, batch)
    for got, expected in zip(
        jax.tree.leaves(parallel(weights, batch)), jax.tree.leaves(want), strict=True
    ):
        assert jnp.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_plan_says_whether_experts_are_one_operator_and_older_ones_run_as_they_are() -> None:
    def step(weights: Any, batch: Any) -> Any:
        return mw.value_and_grad(lambda w: _gated(batch["rows"], w, batch["sizes"]).mean())(weights)

    weights = _gated_weights(4, 8, 16)
    batch = {
        "rows": jax.random.normal(jax.random.key(1), (ROWS, 8)),
        "sizes": jnp.array([20, 0, 30, 14], jnp.int32),
    }
    options = {"batch_argnums": (1,), "batch_dims": None, "donate_argnums": ()}
    plan = mw.parallelize(step, method=mw.IntraOp((8,)), **options).plan(weights, batch)
    assert plan.joins_experts
    again = mw.parallelize(step, method=mw.Replay(plan), **options)
    assert again.plan(weights, batch).decisions == plan.decisions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwise.planner.step.with_experts", lambda opened: opened)
        older = mw.parallelize(step, method=mw.IntraOp((8,)), **options).plan(weights, batch)
    assert not older.joins_experts
    replayed = mw.parallelize(step, method=mw.Replay(older), **options)
    assert not replayed.plan(weights, batch).joins_experts
    want = jax.jit(step)(weights, batch)
    for run in (again, replayed):
        for got, expected in zip(
            jax.tree.leaves(run(weights, batch)), jax.tree.leaves(want), strict=True
        ):
            assert jnp.allclose(got, expected, rtol=1e-4, atol=1e-5)
