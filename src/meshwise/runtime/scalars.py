"""Scalars that a step returns can be read in every process of a job, wherever they were made."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from meshwise.runtime.transports.tile_copier import TileCopier


class EveryProcess:
    """Brings scalars to the first device of each process."""

    def __init__(self, copier: TileCopier) -> None:
        """Find the devices.

        Args:
            copier: Moves the scalars.
        """
        self._copier = copier
        self._there = in_every_process()

    def readable(self, results: Sequence[jax.Array]) -> list[jax.Array]:
        """Return results with each scalar where every process can read it.

        Args:
            results: Flat results of a step.
        """
        return [
            self._copier.put(x, self._there) if not x.ndim and is_missed(x.sharding) else x
            for x in results
        ]


def in_every_process() -> NamedSharding:
    """Return where a value can be read in every process: on the first device of each."""
    first: dict[int, object] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    mesh = Mesh(np.array(list(first.values()), object), ("process",))
    return NamedSharding(mesh, PartitionSpec())


def is_missed(sharding: Sharding) -> bool:
    """Return whether a process has nothing of a value that lies on a mesh."""
    if not isinstance(sharding, NamedSharding):
        return False
    return len({d.process_index for d in sharding.device_set}) < jax.process_count()
