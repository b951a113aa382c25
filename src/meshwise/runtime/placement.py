"""Arguments are brought to the devices on which a step wants them, in one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from meshwise.runtime.host_rows import HostRows

# What a step takes as an argument.
Argument: TypeAlias = ArrayLike | HostRows


def placed(values: Sequence[Argument], wanted: Sequence[NamedSharding]) -> list[jax.Array]:
    """Return arrays in shardings; those that are there already stay.

    Args:
        values: Arrays.  What NumPy or one process holds is the whole array, the same in every
            process, which takes what lies on its own devices; `HostRows` are rows of it.
        wanted: The sharding of each.

    Raises:
        DataError: rows that lie on devices of this process are not in it.
    """
    if all(sharding.is_fully_addressable for sharding in wanted):
        given = [value.whole() if isinstance(value, HostRows) else value for value in values]
        return jax.device_put(given, list(wanted))
    return [_placed(value, sharding) for value, sharding in zip(values, wanted, strict=True)]


def _placed(value: Argument, sharding: NamedSharding) -> jax.Array:
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return value if value.sharding == sharding else jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(value)
        names = (*sharding.spec, *[None] * (data.ndim - len(sharding.spec)))
        whole = NamedSharding(sharding.mesh, PartitionSpec(*names))
        return jax.random.wrap_key_data(_placed(data, whole), impl=str(jax.random.key_impl(value)))
    host = value if isinstance(value, HostRows) else np.asarray(value)
    dtype = jax.typeof(value).dtype if not isinstance(value, HostRows) else value.dtype

    def on_device(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        return host[index]

    return jax.make_array_from_callback(host.shape, sharding, on_device, dtype=dtype)
