"""What is taken from JAX beyond its stable public API."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.jax_compat.arrays import CAN_REFILL, refill
from meshwise.jax_compat.source_lines import source_line


def step(x: float) -> jax.Array:
    def inner(y: float) -> jax.Array:
        return jax.numpy.sin(y)

    return inner(x)


def test_source_lines_name_file_and_function_but_no_folder() -> None:
    (eqn,) = jax.make_jaxpr(step)(1.0).eqns
    line = source_line(eqn.source_info)
    assert line.startswith("test_jax_compat.py:17:")
    assert line.endswith(" (step.inner)")


def test_without_a_source_there_is_no_line() -> None:
    assert source_line(None) == ""


@pytest.mark.skipif(not CAN_REFILL, reason="this JAX gives deleted arrays no buffers")
@pytest.mark.parametrize("is_random_key", [False, True])
def test_a_deleted_array_takes_the_place_of_another(is_random_key: bool) -> None:
    def made(start: int) -> jax.Array:
        values = start + jnp.arange(4, dtype=jnp.uint32)
        return jax.vmap(jax.random.key)(values) if is_random_key else values

    def seen(array: jax.Array) -> list[int]:
        shards = [shard.data for shard in array.addressable_shards]
        return [int(x) for d in shards for x in np.ravel(bits(d))]

    def bits(array: jax.Array) -> jax.Array:
        return jax.random.key_data(array) if is_random_key else array

    spread = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
    array, other = (jax.device_put(made(n), spread) for n in (0, 7))
    expected = seen(other)
    assert seen(array) != expected
    array.delete()
    refill(array, other)
    del other
    assert not array.is_deleted()
    assert seen(array) == expected
    assert [int(x) for x in np.ravel(bits(array))] == expected
