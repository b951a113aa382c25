"""Where arrays lie: shardings of random keys, and the boxes of shardings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec, Sharding

from meshwise.resharding.tiles import Box


def of_numbers(sharding: NamedSharding, rank: int) -> NamedSharding:
    """Return the sharding of the numbers of random keys, which have more dims, for a rank."""
    spec = sharding.spec
    return NamedSharding(sharding.mesh, PartitionSpec(*spec, *[None] * (rank - len(spec))))


def boxes_of(sharding: Sharding, shape: tuple[int, ...]) -> dict[Any, Box]:
    """Return the elements that each device of a sharding has, of all processes."""
    indices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    return {device: _box(index, shape) for device, index in indices.items()}


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """Return an index as JAX gives it."""
    found = (part.indices(size) for part, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in found)
