"""Loops split over mesh axes: what a local form sees inside `shard_map`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from meshwise.graph.loops import LoopRule, Strategy, axes_along, axes_of_loop
from meshwise.rules.primitive import Shards


def rank_along(axes: Sequence[int], sizes: Sequence[int], names: Sequence[str]) -> Array:
    """Position of this device along several axes, the first one major (int32)."""
    rank = jnp.int32(0)
    for axis in axes:
        rank = rank * sizes[axis] + lax.axis_index(names[axis]).astype(jnp.int32)
    return rank


class SpaceShards(Shards):
    """Each loop in contiguous blocks over the mesh axes that the strategy maps to it."""

    def __init__(
        self, rule: LoopRule, strategy: Strategy, sizes: Sequence[int], names: Sequence[str]
    ) -> None:
        """Args: the rule, the strategy, and the mesh by sizes and names of its axes."""
        self.rule = rule
        self._strategy = strategy
        self._sizes = tuple(sizes)
        self._names = tuple(names)

    def parts(self, loop: int) -> int:
        """Into how many parts a loop is split."""
        return math.prod(self._sizes[a] for a in axes_along(self.rule, self._strategy, loop))

    def axis_names(self, loop: int) -> tuple[str, ...]:
        """Names of the mesh axes that split a loop, without those of size 1."""
        axes = axes_of_loop(self._strategy, loop)
        return tuple(self._names[a] for a in axes if self._sizes[a] > 1)

    def _rank(self, loop: int) -> Array:
        axes = axes_along(self.rule, self._strategy, loop)
        return rank_along(axes, self._sizes, self._names)

    def block_start(self, loop: int) -> Array | int:
        """First global index of the local block."""
        if self.parts(loop) == 1:
            return 0
        return self._rank(loop) * self.local_size(loop)

    def global_index(self, loop: int) -> Array:
        """Global indices of the local iterations."""
        return jnp.arange(self.local_size(loop), dtype=jnp.int32) + self.block_start(loop)

    def is_first(self, loop: int) -> Array | bool:
        """Return whether this device holds the first block of a loop."""
        if self.parts(loop) == 1:
            return True
        return self._rank(loop) == 0

    def is_first_device(self) -> Array | bool:
        """Return whether every coordinate of this device is 0."""
        axes = [a for a, size in enumerate(self._sizes) if size > 1]
        return rank_along(axes, self._sizes, self._names) == 0 if axes else True
