"""Attention on one device: rows of queries that stay, blocks of keys and values that come by.

The softmax is a running one: where a block has a larger score, what was summed before is scaled.
So only the scores with one block are held, or with a *chunk* of a long block.  The gradients
compute the scores of each chunk again.  For each row they need what the forward pass kept: its
largest score, and the sum of its exponentials.

Source: Milakov and Gimelshein 2018 (the running softmax); Liu, Zaharia and Abbeel 2023 (the ring).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.rules.attention.scores import KEY, Scores

# A chunk of less than one part in so many of what is allowed costs more than it saves.
_SMALLEST_PART = 8
# With two devices the gradients have a first and a last turn, and no loop between them.
_SHORTEST_RING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What an attention operator computes.

    Queries are (batch ..., group ..., row, feature), keys and values (batch ..., key, feature):
    the heads of a group share them.

    Attributes:
        num_batch: Number of batch dims.
        scores: How scores follow from the first product.
        score_dtype: Dtype of the first product.
        weight_dtype: Dtype in which weights enter the second product.
        result_dtype: Dtype of the result.
        precision: Precision of the two products.
        chunk: The most keys with which scores are made at once.
    """

    num_batch: int
    scores: Scores
    score_dtype: str
    weight_dtype: str
    result_dtype: str
    precision: tuple[Any, Any] = (None, None)
    chunk: int = 1024

    def chunk_of(self, num_keys: int) -> int:
        """Return the size of equal chunks of a block of keys; the block if it has no such parts."""
        size = max(d for d in range(1, min(num_keys, self.chunk) + 1) if num_keys % d == 0)
        return size if size * _SMALLEST_PART >= min(num_keys, self.chunk) else num_keys

    @property
    def sum_dtype(self) -> Any:
        """The dtype of sums: at least 32 bits."""
        return jnp.promote_types(self.score_dtype, jnp.float32)

    def product(self, queries: Array, keys: Array) -> Array:
        """Return the first product."""
        return self._dot(queries, keys, KEY, KEY, self.score_dtype, self.precision[0])

    def mixed(self, weights: Array, values: Array) -> Array:
        """Return the second product, in the dtype of sums."""
        return self._dot(weights, values, KEY, -2, self.sum_dtype, self.precision[1])

    def of_rows(self, weights: Array, rows: Array, number: int) -> Array:
        """Return the sum over rows and groups of weights (row, key) times rows (row, feature)."""
        batch = tuple(range(self.num_batch))
        summed = tuple(range(self.num_batch, weights.ndim - 1))
        dims = ((summed, summed), (batch, batch))
        return lax.dot_general(
            weights, rows, dims, self._own(number), preferred_element_type=self.sum_dtype
        )

    def of_keys(self, weights: Array, keys: Array) -> Array:
        """Return weights (row, key) times keys (key, feature): a gradient of the first product."""
        return self._dot(weights, keys, KEY, -2, self.sum_dtype, self._own(0))

    def weights_of(self, rows: Array, values: Array) -> Array:
        """Return rows (row, feature) times values (key, feature)."""
        return self._dot(rows, values, KEY, KEY, self.sum_dtype, self._own(1))

    def _own(self, number: int) -> Any:
        """Return the precision of a product's gradients; the default in place of an algorithm."""
        found = self.precision[number]
        return found if isinstance(found, lax.Precision) else None

    def _dot(
        self, left: Array, right: Array, of_left: int, of_right: int, dtype: Any, precision: Any
    ) -> Array:
        batch = tuple(range(self.num_batch))
        dims = (((left.ndim + of_left,), (right.ndim + of_right,)), (batch, batch))
        return lax.dot_general(left, right, dims, precision, preferred_element_type=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a device stands.

    Attributes:
        row_start: Number of its first row of queries.
        axes: Names of the mesh axes around which keys go; none if it holds all of them.
        count: Devices in the ring.
        rank: Its own place in the ring.
    """

    row_start: Array | int = 0
    axes: tuple[str, ...] = ()
    count: int = 1
    rank: Array | int = 0

    def passed_on(self, block: Array) -> Array:
        """Return the block of the device before this one."""
        return lax.ppermute(
            block, self.axes, [(i, (i + 1) % self.count) for i in range(self.count)]
        )


ALONE = Place()


class _Sums(NamedTuple):
    """For each row, of the keys so far: largest score, sum of exponentials, weighted values."""

    largest: Array
    total: Array
    mixed: Array


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a device, with what they need of keys and values that come by.

    A block is keys and values side by side, so that they are sent at once.
    """

    attention: Attention
    place: Place
    queries: Array
    others: Sequence[Array]
    num_key_features: int

    def parts(self, block: Array) -> tuple[Array, Array]:
        """Return keys and values of a block."""
        at = self.num_key_features
        return block[..., :at], block[..., at:]

    def scores(self, product: Array, start: Array | int) -> Array:
        """Return the scores with keys that begin at a number."""
        size = product.shape[KEY]
        others = [
            lax.dynamic_slice_in_dim(x, start, size, axis=x.ndim - 1) if x.shape[KEY] > size else x
            for x in self.others
        ]
        return self.attention.scores.of(product, others, self.place.row_start, start)

    def start(self, block: Array, turn: Array | int) -> Array | int:
        """Return the number of the first key of the block that comes by in a turn."""
        return (self.place.rank - turn) % self.place.count * block.shape[-2]

    def over(self, block: Array, turn: Array | int, step: _Step, carry: Any) -> Any:
        """Take a step with each chunk of a block.

        Args:
            block: The block.
            turn: In which turn it comes by.
            step: What is done with (carry, chunk, its place in the block, number of its first key).
            carry: What goes from one chunk to the next.
        """
        start, num_keys = self.start(block, turn), block.shape[-2]
        size = self.attention.chunk_of(num_keys)
        if size == num_keys:
            return step(carry, block, 0, start)

        def chunk(carry: Any, number: Array) -> tuple[Any, None]:
            at = number * size
            taken = lax.dynamic_slice_in_dim(block, at, size, axis=block.ndim - 2)
            return step(carry, taken, at, start + at), None

        return lax.scan(chunk, carry, jnp.arange(num_keys // size))[0]


_Step: TypeAlias = Callable[[Any, Array, Array | int, Array | int], Any]


def attention_of(
    attention: Attention,
    queries: Array,
    keys: Array,
    values: Array,
    others: Sequence[Array],
    place: Place = ALONE,
) -> tuple[Array, Array, Array]:
    """Return the result for the rows of one device, their largest scores and their sums.

    Args:
        attention: What is computed.
        queries: The rows of the device.
        keys: Its block of keys.
        values: Its block of values.
        others: Other operands of the scores: rows of the device, all keys.
        place: Where it stands.
    """
    rows = _Rows(attention, place, queries, others, keys.shape[-1])
    dtype = attention.sum_dtype

    def step(sums: _Sums, taken: Array, at: Array | int, start: Array | int) -> _Sums:
        del at
        keys, values = rows.parts(taken)
        scores = rows.scores(attention.product(queries, keys), start).astype(dtype)
        largest = jnp.maximum(jnp.max(scores, axis=KEY), sums.largest)
        # Where all is masked with -inf so far, nothing is summed.
        shift = jnp.where(jnp.isneginf(largest), 0, largest)
        weights = jnp.exp(scores - shift[..., None])
        scale = jnp.exp(sums.largest - shift)
        mixed = attention.mixed(weights.astype(attention.weight_dtype), values)
        total = sums.total * scale + jnp.sum(weights, axis=KEY)
        return _Sums(largest, total, sums.mixed * scale[..., None] + mixed)

    sums = _Sums(
        jnp.full(queries.shape[:-1], -jnp.inf, dtype),
        jnp.zeros(queries.shape[:-1], dtype),
        jnp.zeros((*queries.shape[:-1], values.shape[-1]), dtype),
    )

    def turn(carry: tuple[_Sums, Array], number: Array) -> tuple[tuple[_Sums, Array], None]:
        sums, taken = carry
        # The next block is under way while this one is computed with.
        return (rows.over(taken, number, step, sums), place.passed_on(taken)), None

    taken = lax.concatenate([keys, values], keys.ndim - 1)
    if place.count > 1:
        (sums, taken), _ = lax.scan(turn, (sums, taken), jnp.arange(place.count - 1))
    sums = rows.over(taken, place.count - 1, step, sums)
    result = sums.mixed / sums.total[..., None]
    return result.astype(attention.result_dtype), sums.largest, sums.total


def gradients_of(
    attention: Attention,
    queries: Array,
    keys: Array,
    values: Array,
    cotangent: Array,
    sums: tuple[Array, Array],
    inner: Array,
    others: Sequence[Array],
    place: Place = ALONE,
) -> tuple[Array, Array, Array]:
    """Return gradients for queries, keys and values, in the dtype of sums.

    Args:
        attention: What is computed.
        queries: The rows of the device.
        keys: Its block of keys.
        values: Its block of values.
        cotangent: Cotangent of its rows of the result.
        sums: For each row its largest score, and the sum of its exponentials.
        inner: For each row the inner product of result and cotangent.
        others: Other operands of the scores: rows of the device, all keys.
        place: Where it stands.
    """
    rows = _Rows(attention, place, queries, others, keys.shape[-1])
    dtype = attention.sum_dtype
    largest, total = sums

    def step(
        carry: tuple[Array, Array], taken: Array, at: Array | int, start: Array | int
    ) -> tuple[Array, Array]:
        """Add what a chunk gives to queries, and what rows give to its keys and values."""
        of_queries, of_block = carry
        keys, values = rows.parts(taken)
        product = attention.product(queries, keys)
        scores, pull = jax.vjp(lambda x: rows.scores(x, start), product)
        weights = jnp.exp(scores.astype(dtype) - largest[..., None]) / total[..., None]
        pulled = weights * (attention.weights_of(cotangent, values) - inner[..., None])
        (of_product,) = pull(pulled.astype(scores.dtype))
        of_product = of_product.astype(queries.dtype)
        of_keys = attention.of_rows(of_product, queries, 0)
        of_values = attention.of_rows(weights.astype(attention.weight_dtype), cotangent, 1)
        share = lax.concatenate([of_keys, of_values], of_keys.ndim - 1)
        of_queries += attention.of_keys(of_product, keys)
        axis, size = share.ndim - 2, share.shape[-2]
        before = lax.dynamic_slice_in_dim(of_block, at, size, axis)
        return of_queries, lax.dynamic_update_slice_in_dim(of_block, before + share, at, axis)

    taken = lax.concatenate([keys, values], keys.ndim - 1)
    nothing = jnp.zeros(taken.shape, dtype)
    start = jnp.zeros(queries.shape, dtype), nothing
    if place.count == 1:
        of_queries, of_block = rows.over(taken, 0, step, start)
        return of_queries, *rows.parts(of_block)

    def last(of_queries: Array, of_block: Array, taken: Array, number: Any) -> tuple[Array, Array]:
        # What others gave to the block comes while its share is computed.
        given = place.passed_on(of_block)
        of_queries, share = rows.over(taken, number, step, (of_queries, nothing))
        return of_queries, given + share

    def turn(carry: tuple[Array, Array, Array], number: Array) -> Any:
        of_queries, of_block, taken = carry
        return (*last(of_queries, of_block, taken, number), place.passed_on(taken)), None

    of_queries, of_block = rows.over(taken, 0, step, start)
    taken = place.passed_on(taken)
    if place.count > _SHORTEST_RING:
        carry = of_queries, of_block, taken
        (of_queries, of_block, taken), _ = lax.scan(turn, carry, jnp.arange(1, place.count - 1))
    of_queries, of_block = last(of_queries, of_block, taken, place.count - 1)
    return of_queries, *rows.parts(place.passed_on(of_block))
