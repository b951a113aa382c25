"""One process of a job that restores the state of two stages, and saves it, with `Checkpoints`.

Its arguments are the folder of a checkpoint, and the folder for its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from hosts.joined import join
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History
from meshwise.train.step import TrainState

STEP = 7
HISTORY = History(losses=(1.0,) * STEP)
IDENTITY: dict[str, object] = {"seed": 0}


def values(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sizes = {"up": (8, 4), "down": (4, 8), "scale": (4,), "shared": (8,), "own": (4,)}
    return {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def state(numbers: dict[str, Any], first: Sequence[Any], second: Sequence[Any]) -> TrainState:
    """Return a state: two stages, what both have, what each process has, and a key."""

    def on(devices: Sequence[Any], *axes: Any) -> NamedSharding:
        return NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec(*axes))

    def put(value: Any, where: Any) -> jax.Array:
        shape, dtype = np.shape(value), np.asarray(value).dtype
        return jax.make_array_from_callback(
            shape, where, lambda index: np.asarray(value)[index], dtype=dtype
        )

    key = np.arange(2, dtype=np.uint32) + int(abs(numbers["own"][0]) * 1e6)
    params = {
        "up": put(numbers["up"], on(first, "x")),
        "down": put(numbers["down"], on(second, None, "x")),
        "scale": put(numbers["scale"], SingleDeviceSharding(second[0])),
        "shared": put(numbers["shared"], on([*first, *second], "x")),
    }
    kept = {
        "own": put(numbers["own"], SingleDeviceSharding(jax.local_devices()[0])),
        "key": jax.random.wrap_key_data(put(key, on(second))),
    }
    count = put(np.int32(STEP if numbers["own"].any() else 0), on(second))
    return TrainState(count, params, kept)


def assert_equal(found: TrainState, want: TrainState, step: int = STEP) -> None:
    assert int(found.step) == step
    for mine, theirs in zip(jax.tree.leaves(found)[1:], jax.tree.leaves(want)[1:], strict=True):
        assert (mine.shape, mine.dtype, mine.sharding) == (
            theirs.shape, theirs.dtype, theirs.sharding,
        )  # fmt: skip
        if jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = map(jax.random.key_data, (mine, theirs))
        for one, other in zip(mine.addressable_shards, theirs.addressable_shards, strict=True):
            assert np.asarray(one.data).tobytes() == np.asarray(other.data).tobytes()


def main(there: str, here: str) -> None:
    of = [[d for d in jax.devices() if d.process_index == p] for p in (0, 1)]
    zeros = jax.tree.map(np.zeros_like, values(0))
    with Checkpoints(Path(there), IDENTITY) as checkpoints:
        found, history = checkpoints.restore(state(zeros, *of))
    assert history == HISTORY
    assert_equal(found, state(values(0), *of))
    with Checkpoints(Path(here), IDENTITY) as checkpoints:
        checkpoints.save(state(values(1), *of)._replace(step=found.step), HISTORY)
        checkpoints.wait()
        assert checkpoints.newest_step == STEP
        # The stages swap their places.
        found, _ = checkpoints.restore(state(zeros, *reversed(of)))
    assert_equal(found, state(values(1), *reversed(of)))


if __name__ == "__main__":
    main(*join())
    sys.stdout.write("passed\n")
    jax.distributed.shutdown()
