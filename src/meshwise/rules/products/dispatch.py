"""Rows go to the devices that have the matrices of their groups, in rounds of equal size.

In a round each device sends equally many places to every device (`graph/dispatch`); places without
a row are filled.  Results return to the places of their rows.  All devices run as many rounds as
the fullest pair needs.

Source: Lepikhin et al. 2020 (GShard), section 3.2, for the exchange; docs/decisions/0034.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from meshwise.graph.dispatch import ROUNDS
from meshwise.rules.products.strips import Groups, run_turns, taken

# What goes from round to round beside the results: arrays of own groups.
Sums: TypeAlias = Any
# Takes arrays of rows, where those of own groups are in them, and sums; see `Routes.run`.
Body: TypeAlias = Callable[[list[Array], Groups, Sums], tuple[list[Array], Sums]]


class Routes(NamedTuple):
    """Where the rows of a device go, and what comes to it.

    Attributes:
        own: Its rows, by device to which they go: one run for each group and sequence.
        counts: Rows that come: (device, own group).
        rounds: How often rows are sent.
        size: Rows from each device to each one in a round.
        axes: Names of the mesh axes along which rows go.
    """

    own: Groups
    counts: Array
    rounds: Array
    size: int
    axes: tuple[str, ...]

    @staticmethod
    def of(
        groups: Groups, *, axes: tuple[str, ...], count: int, start: Array | int, size: int
    ) -> Routes:
        """Return the routes of a device; all devices along the axes run this together.

        Args:
            groups: Its rows of all groups.
            axes: Names of the mesh axes along which rows go.
            count: Devices along them.
            start: Number of the first group whose matrix it has.
            size: Rows from each device to each one in a round.
        """
        own = Groups(*(x.reshape(count, -1) for x in groups))
        all_counts = lax.all_gather(jnp.sum(groups.length, axis=1), axes)
        of_pairs = jnp.sum(all_counts.reshape(count, count, -1), axis=2)
        counts = lax.dynamic_slice_in_dim(all_counts, start, all_counts.shape[1] // count, 1)
        return Routes(own, counts, -(-jnp.max(of_pairs) // size), size, axes)

    def run(
        self, operands: Sequence[Array], body: Body, results: Sequence[Array], sums: Sums
    ) -> tuple[list[Array], Sums]:
        """Send rows round by round to the devices of their groups, and results back.

        Args:
            operands: Arrays of the rows of this device: (row, feature) each.
            body: Takes the arrays of the rows that came, where the rows of each own group are in
                them, and the sums; returns one result for each of these rows, and the new sums.
            results: Initial results, kept for rows of no group: (row, column) each.
            sums: Initial sums, carried from round to round.

        Returns:
            The results of own rows, and the sums.
        """
        num_rows = len(operands[0])

        def one_round(number: Array, carry: tuple[list[Array], Sums]) -> tuple[list[Array], Sums]:
            results, sums = carry
            which = self._rows(number, num_rows)
            came = [self._arrived(rows, which) for rows in operands]
            made, sums = body(came, self._groups(number), sums)
            back = [self._sent(x.reshape(*which.shape, -1)) for x in made]
            return [
                out.at[which].set(x, mode="drop", unique_indices=True)
                for out, x in zip(results, back, strict=True)
            ], sums

        return run_turns(self.rounds, ROUNDS, one_round, (list(results), sums))

    def _arrived(self, rows: Array, which: Array) -> Array:
        """Return the rows that come while each device sends some of its own."""
        return self._sent(taken(rows, which)).reshape(-1, rows.shape[-1])

    def _rows(self, number: Array, beyond: int) -> Array:
        """Return the numbers of the rows that go in a round: (device, place).

        Args:
            number: Number of the round.
            beyond: Number of all rows; places without a row get distinct numbers >= `beyond`.
        """
        devices = jnp.arange(len(self.own.first), dtype=number.dtype)
        found = jax.vmap(lambda device: self.own.rows(device, number, self.size, beyond))(devices)
        return jnp.where(found < beyond, found, found + self.size * devices[:, None])

    def _sent(self, values: Array) -> Array:
        """Return what comes while each device sends its rows: (device, place, feature)."""
        return lax.all_to_all(values, self.axes, split_axis=0, concat_axis=0, tiled=True)

    def _groups(self, number: Array) -> Groups:
        """Return where the rows of own groups are among those that come in a round."""
        ends = jnp.cumsum(self.counts, axis=1, dtype=np.int32) - number * self.size
        first = jnp.clip(ends - self.counts, 0, self.size)
        length = jnp.clip(ends, 0, self.size) - first
        before = self.size * jnp.arange(len(self.counts), dtype=np.int32)[:, None]
        return Groups((first + before).T, length.T)
