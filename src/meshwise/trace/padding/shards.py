"""Loops that are longer than they were: what a local form sees of a padded equation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from meshwise.graph.loops import DimMap, LoopRule
from meshwise.rules.primitive import Shards

# A padded loop is no whole loop: a lookup keeps to the rows there were, a draw goes by positions.
_NOT_WHOLE = 2


class PaddedShards(Shards):
    """One part of each loop, the first one; padded loops have more iterations than the equation."""

    is_planned: ClassVar[bool] = True

    def __init__(self, rule: LoopRule, padded: Mapping[int, int]) -> None:
        """Args: the rule; for each padded loop its new size."""
        self.rule = rule
        self._padded = dict(padded)

    def parts(self, loop: int) -> int:
        """1 for a loop as it was; more for a padded one, which is not the whole of anything."""
        return _NOT_WHOLE if loop in self._padded else 1

    def block_start(self, loop: int) -> Array | int:
        """Zero."""
        del loop
        return 0

    def global_index(self, loop: int) -> Array:
        """0, 1, 2, ... beyond the old size."""
        return jnp.arange(self.local_size(loop), dtype=jnp.int32)

    def is_first(self, loop: int) -> Array | bool:
        """Always."""
        del loop
        return True

    def local_size(self, loop: int) -> int:
        """Return the new size."""
        return self._padded.get(loop, self.rule.loops[loop].size)

    def local_shape(self, shape: Sequence[int], dims: DimMap) -> tuple[int, ...]:
        """Shape with padded dims; a padded loop is never merged with another in one dim."""
        return tuple(
            self._padded.get(loops[0], size) if len(loops) == 1 else size
            for size, loops in zip(shape, dims, strict=True)
        )
