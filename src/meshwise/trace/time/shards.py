"""Loops split over micro-batches: what a local form sees inside the loop."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from meshwise.graph.loops import LoopRule
from meshwise.rules.primitive import Shards
from meshwise.trace.time.state import Batch


class TimeShards(Shards):
    """At most one loop is cut, into micro-batches whose rows are interleaved (see `Batch`)."""

    is_planned: ClassVar[bool] = True

    def __init__(self, rule: LoopRule, choice: int, batch: Batch, index: Array) -> None:
        """Args: the rule, the loop that is cut, how the batch is cut, the micro-batch index."""
        self.rule = rule
        self._choice = choice
        self._batch = batch
        self._index = index

    def parts(self, loop: int) -> int:
        """Micro-batches if this loop is cut, else 1."""
        return self._batch.num_microbatches if loop == self._choice else 1

    def block_start(self, loop: int) -> Array | int:
        """Zero for a whole loop.

        Raises:
            ValueError: the loop is cut; its rows are no block.
        """
        if self.parts(loop) > 1:
            raise ValueError(f"loop {loop} is cut into micro-batches and does not lie in one piece")
        return 0

    def global_index(self, loop: int) -> Array:
        """Global row numbers of the local iterations (docs/decisions/0002, rule 7)."""
        rows = jnp.arange(self.local_size(loop), dtype=jnp.int32)
        if self.parts(loop) == 1:
            return rows
        size = self.rule.loops[loop].size
        run = size // (self._batch.groups * self._batch.num_microbatches)
        return (rows // run) * (size // self._batch.groups) + self._index * run + rows % run

    def is_first(self, loop: int) -> Array | bool:
        """Return whether this is the first micro-batch."""
        return self._index == 0 if self.parts(loop) > 1 else True
