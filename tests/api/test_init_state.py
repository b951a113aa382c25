"""State that is born on the devices of its stages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.api.init_state import born_sharded


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
