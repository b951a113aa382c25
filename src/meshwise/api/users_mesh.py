"""Results under `jax.set_mesh` with Explicit axes, where JAX computes with that mesh alone."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from meshwise.jax_compat.contexts import explicit_mesh


def on_users_mesh(results: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Return results, in which those that are whole on every device have the mesh that is set.

    A scalar on the devices of one stage, as the loss, is copied to all devices.  Other results are
    returned as they are.

    Args:
        results: Results of a step.
    """
    mesh = explicit_mesh()
    if mesh is None:
        return results
    whole = NamedSharding(mesh, PartitionSpec())
    return [_whole(x, whole) if x.is_fully_replicated else x for x in results]


def _whole(value: jax.Array, whole: NamedSharding) -> jax.Array:
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.extended)
    if value.sharding.device_set == whole.device_set and not is_key:
        shards = [shard.data for shard in value.addressable_shards]
        return jax.make_array_from_single_device_arrays(value.shape, whole, shards)
    is_number = value.shape == () and not is_key
    return jax.device_put(value, whole) if is_number and whole.is_fully_addressable else value
