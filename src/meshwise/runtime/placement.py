"""Arguments are brought to the devices on which a step wants them, in one process or several."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike


def placed(values: Sequence[ArrayLike], wanted: Sequence[NamedSharding]) -> list[jax.Array]:
    """Return arrays in shardings; those that are there already stay.

    Args:
        values: Arrays.  What NumPy or one process holds is the whole array, the same in every
            process, which takes what lies on its own devices.
        wanted: The sharding of each.
    """
    if all(sharding.is_fully_addressable for sharding in wanted):
        return jax.device_put(list(values), list(wanted))
    return [_placed(value, sharding) for value, sharding in zip(values, wanted, strict=True)]


def _placed(value: ArrayLike, sharding: NamedSharding) -> jax.Array:
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return value if value.sharding == sharding else jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(value)
        names = (*sharding.spec, *[None] * (data.ndim - len(sharding.spec)))
        whole = NamedSharding(sharding.mesh, PartitionSpec(*names))
        return jax.random.wrap_key_data(_placed(data, whole), impl=str(jax.random.key_impl(value)))
    host = np.asarray(value)
    return jax.make_array_from_callback(
        host.shape, sharding, lambda index: host[index], dtype=jnp.asarray(value).dtype
    )
