"""Scalars that a step returns can be read in every process of a job, wherever they were made."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from meshwise.runtime.transports.tile_copier import TileCopier


class EveryProcess:
    """Brings scalars to the first device of each process."""

    def __init__(self) -> None:
        """Find the devices."""
        first: dict[int, object] = {}
        for device in jax.devices():
            first.setdefault(device.process_index, device)
        mesh = Mesh(np.array(list(first.values()), object), ("process",))
        self._there = NamedSharding(mesh, PartitionSpec())
        self._processes = set(first)

    def place(self, rank: int, sharding: Sharding) -> Sharding:
        """Return where an array lies for users: a scalar on a mesh where all processes have it.

        Args:
            rank: Number of its dims.
            sharding: Where the step has it.
        """
        if rank or not isinstance(sharding, NamedSharding):
            return sharding
        is_missed = self._processes > {d.process_index for d in sharding.device_set}
        return self._there if is_missed else sharding

    def readable(self, results: Sequence[jax.Array], copier: TileCopier) -> list[jax.Array]:
        """Return results with each scalar where every process can read it.

        Args:
            results: Flat results of a step.
            copier: Moves the scalars.
        """
        return [
            x if place == x.sharding else copier.put(x, self._there)
            for x in results
            for place in [self.place(x.ndim, x.sharding)]
        ]
