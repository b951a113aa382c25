"""A checkpoint of a pipeline is that state, bit for bit, under whatever plan it is restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History
from meshwise.train.step import TrainState

SHAPES = {"embedding": (16, 8), "up": (8, 32), "down": (32, 8), "scale": (8,)}
HISTORY = History(losses=(1.0,) * 7, heldout=((0, 2.0),))


def placed(values: Any, places: dict[str, Any]) -> TrainState:
    last = places["scale"]
    counter = NamedSharding(last.mesh, PartitionSpec()) if isinstance(last, NamedSharding) else last
    params = {name: jax.device_put(values[name], places[name]) for name in SHAPES}
    moments = {name: jax.device_put(-values[name], places[name]) for name in SHAPES}
    return TrainState(jax.device_put(jnp.int32(7), counter), params, (moments, None))


def on(devices: Any, *axes: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(devices).reshape(2, -1), ("x", "y")), PartitionSpec(*axes))


def two_stages() -> dict[str, Any]:
    first, second = jax.devices()[:4], jax.devices()[4:]
    return {
        "embedding": on(first, "y", None), "up": on(first, None, ("x", "y")),
        "down": on(second, "x", "y"), "scale": on(second),
    }  # fmt: skip


def uneven_stages() -> dict[str, Any]:
    """Three stages: six devices, one, one."""
    devices = jax.devices()
    return {
        "embedding": on(devices[:6], "x", None), "up": on(devices[:6], "x", None),
        "down": SingleDeviceSharding(devices[6]), "scale": SingleDeviceSharding(devices[7]),
    }  # fmt: skip


def one_mesh() -> dict[str, Any]:
    return {name: on(jax.devices(), *("y" if n == 0 else None for n in range(len(shape))))
            for name, shape in SHAPES.items()}  # fmt: skip


@pytest.mark.parametrize("there", [two_stages, uneven_stages, one_mesh])
@pytest.mark.parametrize("here", [two_stages, uneven_stages, one_mesh])
def test_a_state_is_restored_where_another_plan_wants_it(
    tmp_path: Path, there: Any, here: Any
) -> None:
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
    values["scale"][:3] = np.nan, np.inf, -0.0
    saved = placed(values, there())
    zeros = {name: np.zeros_like(value) for name, value in values.items()}
    like = placed(zeros, here())
    wanted = jax.tree.map(lambda x: x.sharding, like)
    with Checkpoints(tmp_path, {"seed": 0}) as checkpoints:
        checkpoints.save(saved, HISTORY)
        found, history = checkpoints.restore(like)
    assert history == HISTORY
    assert jax.tree.map(lambda x: x.sharding, found) == wanted
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(saved), strict=True):
        assert new.dtype == old.dtype
        assert np.asarray(new).tobytes() == np.asarray(old).tobytes()
        for shard in new.addressable_shards:
            whole = np.asarray(old)[shard.index]
            assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(whole).tobytes()
