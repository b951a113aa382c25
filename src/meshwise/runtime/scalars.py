"""Scalars that a step returns can be read in every process of a job, wherever they were made."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.runtime.transports.tile_copier import TileCopier


class EveryProcess:
    """Brings scalars to the first device of each process."""

    def __init__(self, copier: TileCopier) -> None:
        """Find the devices.

        Args:
            copier: Moves the scalars.
        """
        first: dict[int, object] = {}
        for device in jax.devices():
            first.setdefault(device.process_index, device)
        mesh = Mesh(np.array(list(first.values()), object), ("process",))
        self._copier = copier
        self._there = NamedSharding(mesh, PartitionSpec())
        self._processes = set(first)

    def readable(self, results: Sequence[jax.Array]) -> list[jax.Array]:
        """Return results with each scalar where every process can read it.

        Args:
            results: Flat results of a step.
        """
        return [
            self._copier.put(x, self._there) if not x.ndim and self._is_missed(x) else x
            for x in results
        ]

    def _is_missed(self, value: jax.Array) -> bool:
        """Return whether a process has nothing of a scalar that lies on a mesh."""
        if not isinstance(value.sharding, NamedSharding):
            return False
        return self._processes > {d.process_index for d in value.sharding.device_set}
