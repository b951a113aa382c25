"""Experts without capacities: the search splits them where their weights are large."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
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
