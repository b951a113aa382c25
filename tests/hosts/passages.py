"""One process of a job that moves arrays at random between devices of all processes.

Its arguments are transports.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hosts.joined import join
from meshwise.runtime.job.job import TransportName, current_job
from meshwise.runtime.placement import placed
from meshwise.runtime.transports.choice import transport_of
from meshwise.runtime.transports.tile_copier import TileCopier

ARRAYS, MOVES = 12, 4
SHAPES = ((), (4,), (4, 8), (8, 0))
DTYPES = (np.float32, np.float64, np.float16, np.int8, np.bool_, jnp.bfloat16, np.complex64)


def random_sharding(rng: random.Random, rank: int) -> NamedSharding:
    """Some devices of the job in any order, and a spec on them."""
    devices = rng.sample(jax.devices(), rng.choice((1, 2, 4)))
    names: list[Any] = [None] * rank
    if rank and rng.random() < 0.6:
        names[rng.randrange(rank)] = "devices"
    return NamedSharding(Mesh(devices, ("devices",)), PartitionSpec(*names))


def move(transport: str) -> None:
    """Move arrays from sharding to sharding; all are on their way when the first is read."""
    job = current_job()
    assert job is not None
    copier = TileCopier(transport_of(replace(job, transport=cast(TransportName, transport))))
    rng = random.Random(0)
    found: list[tuple[np.ndarray[Any, Any], jax.Array]] = []
    for n in range(ARRAYS):
        shape = rng.choice(SHAPES)
        whole = np.random.default_rng(n).integers(-9, 9, shape).astype(rng.choice(DTYPES))
        array = placed([whole], [random_sharding(rng, len(shape))])[0]
        for _ in range(MOVES):
            array = copier.put(array, random_sharding(rng, len(shape)))
        found.append((whole, array))
    for whole, array in found:
        assert array.dtype == whole.dtype
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])
    key = copier.put(
        placed([jax.random.key(7)], [random_sharding(rng, 0)])[0], random_sharding(rng, 0)
    )
    for shard in key.addressable_shards:
        assert jax.random.key_data(shard.data).tolist() == [0, 7]


if __name__ == "__main__":
    with jax.enable_x64(True):
        for name in join():
            move(name)
            sys.stdout.write(f"passed {name}\n")
    jax.distributed.shutdown()
