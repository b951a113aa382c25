"""Rows and the keys of the same positions under a causal mask: what it hides is left out.

Rows are cut into equal query blocks, and keys into equal chunks; a query block is as long as one
chunk or several.  Only the pairs of a query block with a chunk that is not after it are computed,
one after the other, so that the scores of one pair are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from meshwise.graph.chunks import chunk_of, num_query_blocks
from meshwise.rules.attention.blocks import PULLED_DIMS, SUM_DIMS, Attention, Pulled, Rows, Sums

_T = TypeVar("_T", Sums, Pulled)


class Diagonal(NamedTuple):
    """Rows of queries with the keys and values of the same positions.

    Attributes:
        attention: What is computed, under a causal mask.
        queries: The rows.
        keys_values: Keys and values side by side.
        num_key_features: Where values begin there.
        starts: Positions in the sequence of the first row of each query block, ascending.  In a
            ring there is a gap between the two halves.
    """

    attention: Attention
    queries: Array
    keys_values: Array
    num_key_features: int
    starts: Array

    @property
    def size(self) -> int:
        """Rows of a query block."""
        return self.queries.shape[-2] // len(self.starts)

    @property
    def chunk(self) -> int:
        """Keys of a chunk."""
        return chunk_of(self.size, self.attention.chunk)

    def result(self) -> tuple[Array, Array, Array]:
        """Return the result of attention, largest scores and sums of exponentials of all rows."""
        num_features = self.keys_values.shape[-1] - self.num_key_features
        sums = self.summed(self.attention.no_sums(self.queries.shape[:-1], num_features))
        return sums.result.astype(self.attention.result_dtype), sums.largest, sums.total

    def gradients(self, pulled: Pulled) -> tuple[Array, Array, Array]:
        """Return gradients for queries, keys and values, in the dtype of sums.

        Args:
            pulled: What the gradients need of all rows.
        """
        dtype, at = self.attention.sum_dtype, self.num_key_features
        nothing = [jnp.zeros(x.shape, dtype) for x in (self.queries, self.keys_values)]
        of_queries, of_block = self.pulled(pulled, *nothing)
        return of_queries, of_block[..., :at], of_block[..., at:]

    def summed(self, sums: Sums) -> Sums:
        """Add the keys that each row sees to sums of all rows."""

        def step(sums: Sums, row: Array, at: Array, start: Array) -> Sums:
            own = self._taken(sums, row, SUM_DIMS)
            found = self._rows(row).summed(self._keys(self.keys_values, at), start, own)
            parts = zip(sums, found, SUM_DIMS, strict=True)
            return Sums(*(_put(whole, part, row * self.size, dim) for whole, part, dim in parts))

        return self._over(step, sums)

    def pulled(self, pulled: Pulled, of_queries: Array, of_block: Array) -> tuple[Array, Array]:
        """Add what keys give to queries, and what rows give to keys and values.

        Args:
            pulled: What the gradients need of all rows.
            of_queries: Gradients for the queries so far, in the dtype of sums.
            of_block: The same for keys and values.
        """

        def step(
            carry: tuple[Array, Array], row: Array, at: Array, start: Array
        ) -> tuple[Array, Array]:
            own = self._part(carry[0], row, -2), self._keys(carry[1], at)
            needed = self._taken(pulled, row, PULLED_DIMS)
            found = self._rows(row).pulled(self._keys(self.keys_values, at), start, needed, own)
            return _put(carry[0], found[0], row * self.size, -2), _put(carry[1], found[1], at, -2)

        return self._over(step, (of_queries, of_block))

    def _over(self, step: _Step, carry: Any) -> Any:
        """Apply `step` to each pair that the mask does not hide.

        Args:
            step: What is done with (carry, number of the query block, index of the first key of the
                chunk, its position in the sequence).
            carry: What goes from one pair to the next.
        """
        per_block = self.size // self.chunk

        def pair(carry: Any, numbers: tuple[Array, Array]) -> tuple[Any, None]:
            row, key = numbers
            start = self.starts[key // per_block] + key % per_block * self.chunk
            return step(carry, row, key * self.chunk, start), None

        rows, blocks = np.tril_indices(len(self.starts))
        keys = (blocks[:, None] * per_block + np.arange(per_block)).reshape(-1)
        numbers = jnp.asarray(rows.repeat(per_block), jnp.int32), jnp.asarray(keys, jnp.int32)
        return lax.scan(pair, carry, numbers)[0]

    def _rows(self, number: Array) -> Rows:
        return Rows(
            attention=self.attention,
            queries=self._part(self.queries, number, -2),
            start=self.starts[number],
            others=(),
            num_key_features=self.num_key_features,
        )

    def _taken(self, whole: _T, number: Array, dims: tuple[int, ...]) -> _T:
        parts = (self._part(x, number, dim) for x, dim in zip(whole, dims, strict=True))
        return type(whole)(*parts)

    def _part(self, whole: Array, number: Array, dim: int) -> Array:
        """Return a query block."""
        return lax.dynamic_slice_in_dim(whole, number * self.size, self.size, whole.ndim + dim)

    def _keys(self, whole: Array, at: Array) -> Array:
        """Return a chunk of keys."""
        return lax.dynamic_slice_in_dim(whole, at, self.chunk, whole.ndim - 2)


def _put(whole: Array, part: Array, at: Array, dim: int) -> Array:
    return lax.dynamic_update_slice_in_dim(whole, part, at, whole.ndim + dim)


_Step: TypeAlias = Callable[[Any, Array, Array, Array], Any]


def diagonal_of(attention: Attention, queries: Array, keys: Array, values: Array) -> Diagonal:
    """Return all rows with all keys.

    Args:
        attention: What is computed, under a causal mask.
        queries: The rows.
        keys: Keys, as many as rows.
        values: Their values.
    """
    num_rows = queries.shape[-2]
    size = num_rows // num_query_blocks(num_rows, attention.chunk)
    return Diagonal(
        attention=attention,
        queries=queries,
        keys_values=lax.concatenate([keys, values], keys.ndim - 1),
        num_key_features=keys.shape[-1],
        starts=jnp.arange(0, num_rows, size, dtype=jnp.int32),
    )
