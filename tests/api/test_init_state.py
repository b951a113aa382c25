"""State that is born on the devices of its stages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshwise as mw
from meshwise.api.init_state import born_sharded
from meshwise.cluster.cpu import cpu_cluster


def test_state_with_holes_is_born_on_its_stages() -> None:
    homes = [
        NamedSharding(Mesh(np.array(jax.devices()[n : n + 1]), ("x",)), PartitionSpec())
        for n in (0, 1)
    ]

    # None is no leaf: it is part of the tree, unlike a leaf that may lie anywhere.
    def create(size: Any) -> Any:
        return {"kept": None, "params": [jnp.ones(3) * size, jnp.zeros(2)], "free": jnp.ones(1)}

    state = jax.eval_shape(create, 2.0)
    made = born_sharded(create, (2.0,), state, [None, *homes], in_job=False)
    assert made["kept"] is None
    assert [x.sharding for x in made["params"]] == homes
    np.testing.assert_array_equal(made["params"][0], [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(made["free"], [1.0])


def test_a_state_of_several_arguments_is_born_where_each_lies() -> None:
    def create(key: Any) -> Any:
        params = {"w": jax.random.normal(key, (8, 8))}
        return params, jax.tree.map(jnp.zeros_like, params)

    def step(params: Any, batch: Any, moments: Any, rate: Any = 0.1) -> Any:
        grads = jax.grad(lambda p: jnp.mean((batch @ p["w"]) ** 2))(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - rate * m, params, moments), moments

    batch = jnp.ones((16, 8))
    parallel = mw.parallelize(step, method=mw.Zero2(), cluster=cpu_cluster(4))
    made = parallel.init(create, jax.random.key(0), batch)
    assert made[0]["w"].sharding.is_fully_replicated
    assert not made[1]["w"].sharding.is_fully_replicated
    want = create(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, made, want)
    kept = parallel(made[0], batch, made[1])
    for got, wanted in zip(kept, step(want[0], batch, want[1]), strict=True):
        np.testing.assert_allclose(got["w"], wanted["w"], rtol=1e-5)
    assert len(parallel.plans) == 1
    # The plan says where several arguments of the state go, as it does for one.
    jax.tree.map(np.testing.assert_array_equal, parallel.init(create, jax.random.key(0)), want)
