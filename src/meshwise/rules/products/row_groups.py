"""Where the rows of groups are on a device, and how they go to the devices of their groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.graph.dispatch import groups_of_round, rows_of_pair
from meshwise.rules.primitive import Shards
from meshwise.rules.products.dispatch import Body, Routes, Sums
from meshwise.rules.products.ragged_rule import RaggedDims
from meshwise.rules.products.strips import Groups, Strips, sum_dtype


class LocalGroups(NamedTuple):
    """Groups of which a device has the matrices, and their rows.

    Attributes:
        num_groups: How many groups.
        rows: Its rows of these groups; None if rows go to the devices of their groups.
        parts: If rows stay: into how many parts the groups are split; its rows are of all parts.
        routes: How rows go; None if they stay.
    """

    num_groups: int
    rows: Groups | None
    parts: int
    routes: Routes | None

    @staticmethod
    def alone(dims: RaggedDims, shape: Sequence[int], sizes: jax.Array) -> LocalGroups:
        """Return all groups, for an operator that is not split.

        Args:
            dims: The dims of the operands.
            shape: The shape of the left operand.
            sizes: Rows of each group.
        """
        count = sizes.shape[-1]
        return LocalGroups(count, _groups(dims, shape, sizes, 0, 0, count), 1, None)

    @staticmethod
    def of(
        shards: Shards,
        dims: RaggedDims,
        shape: Sequence[int],
        sizes: jax.Array,
        loops: tuple[int, ...],
    ) -> LocalGroups:
        """Return the groups of a device.

        Args:
            shards: How the loops are split.
            dims: The dims of the operands.
            shape: The shape of the local left operand.
            sizes: Rows of each of all groups, in the local sequences.
            loops: The loop of the groups; () if there is one group at most.
        """
        dispatch = shards.rule.dispatch
        parts = shards.parts(loops[0]) if loops else 1
        count = sizes.shape[-1] // parts
        follows = shards.rule.operands[0][dims.rows[0][dims.num_outer]]
        start = shards.block_start(follows[0]) if follows else 0
        own = partial(_groups, dims, shape, sizes, start)
        first = shards.block_start(loops[0]) if parts > 1 else 0
        if dispatch is None or shards.parts(dispatch.loop) == 1:
            return LocalGroups(count, own(first, count), parts, None)
        routes = Routes.of(
            own(0, sizes.shape[-1]),
            axes=shards.axis_names(dispatch.loop),
            count=parts,
            start=first,
            size=rows_of_pair(math.prod(shape[i] for i in dims.rows[0]), parts),
        )
        return LocalGroups(count, None, 1, routes)

    @property
    def num_matrices(self) -> int:
        """Groups of the device, each of all of the batch."""
        return self.num_groups if self.rows is None else len(self.rows.first)

    def nothing(self, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
        """Return zeros to which gradients of matrices are added: (matrix, *shape).

        Over rounds floats are added with 32 bits or more.

        Args:
            shape: The shape of one matrix.
            dtype: The dtype of the gradients.
        """
        used = dtype if self.routes is None else sum_dtype(dtype)
        return jnp.zeros((self.num_matrices, *shape), used)

    def run(
        self, operands: Sequence[jax.Array], body: Body, results: Sequence[jax.Array], sums: Sums
    ) -> tuple[list[jax.Array], Sums]:
        """Run a body with the rows of own groups: those of the device, or those that come.

        Args:
            operands: Arrays of the rows of this device: (row, feature) each.
            body: As `Routes.run` has it.
            results: As `Routes.run` has them; not used if rows stay.
            sums: As `Routes.run` has them.

        Returns:
            The results of the rows of this device, and the sums.
        """
        if self.routes is not None:
            return self.routes.run(operands, body, results, sums)
        assert self.rows is not None
        return body(list(operands), self.rows, sums)

    @property
    def some(self) -> int | None:
        """About how many groups have rows in a round; None if rows stay."""
        return None if self.routes is None else groups_of_round(self.num_groups)

    def strips(self, rows: jax.Array, own: Groups, most: int) -> Strips:
        """Return the strips of own groups.

        Args:
            rows: All rows of the device, or those that came in a round.
            own: Where the rows of own groups are among them.
            most: What `most_rows` returns.
        """
        count = self.some or len(own.first) * self.parts
        return Strips.of(len(rows), count, most)


def padded_sizes(sizes: jax.Array, count: int) -> jax.Array:
    """Return sizes of so many groups: those behind the last one have no rows.

    Args:
        sizes: Rows of each group, the last dim.
        count: Number of groups.
    """
    return jnp.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, count - sizes.shape[-1])])


def _groups(
    dims: RaggedDims,
    shape: Sequence[int],
    sizes: jax.Array,
    start: jax.Array | int,
    first: jax.Array | int,
    count: int,
) -> Groups:
    """Return where the rows of own groups are among all rows of the local left operand.

    Args:
        dims: The dims of the operands.
        shape: Of the left operand.
        sizes: Rows of each group, of all groups.
        start: The first row of the local block of the ragged dim.
        first: The first own group.
        count: How many are own.
    """
    batch, rows = ([shape[i] for i in run[0]] for run in (dims.batch, dims.rows))
    outer, inner = math.prod(rows[: dims.num_outer]), math.prod(rows[dims.num_outer + 1 :])
    length = rows[dims.num_outer]
    num_batch = math.prod(batch)
    sizes = jnp.broadcast_to(sizes, (*batch, *rows[: dims.num_outer], sizes.shape[-1]))
    sizes = sizes.reshape(num_batch, outer, -1).astype(np.int32)
    ends = jnp.cumsum(sizes, axis=-1, dtype=np.int32) - start
    starts, ends = jnp.clip(ends - sizes, 0, length), jnp.clip(ends, 0, length)
    before = length * jnp.arange(num_batch * outer, dtype=np.int32).reshape(num_batch, outer, 1)

    def own(x: jax.Array) -> jax.Array:
        x = lax.dynamic_slice_in_dim(inner * x, first, count, 2)
        order = (0, 2, 1) if dims.is_batch_first else (2, 0, 1)
        return jnp.transpose(x, order).reshape(count * num_batch, outer)

    return Groups(own(before + starts), own(jnp.maximum(ends - starts, 0)))
