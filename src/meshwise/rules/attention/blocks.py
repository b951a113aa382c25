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

from meshwise.graph.chunks import MOST_KEYS, chunk_of
from meshwise.rules.attention.scores import KEY, Scores

# With two devices the gradients have a first and a last turn, and no loop between them.
SHORTEST_RING = 2


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
        chunk: The most keys in a chunk (`graph/chunks`).
    """

    num_batch: int
    scores: Scores
    score_dtype: str
    weight_dtype: str
    result_dtype: str
    precision: tuple[Any, Any] = (None, None)
    chunk: int = MOST_KEYS

    @property
    def sum_dtype(self) -> Any:
        """The dtype of sums: at least 32 bits."""
        return jnp.promote_types(self.score_dtype, jnp.float32)

    def no_sums(self, rows: Sequence[int], num_features: int) -> Sums:
        """Return the sums of no keys.

        Args:
            rows: Sizes of batch dims, dims of a group and rows.
            num_features: Features of a value.
        """
        shape, dtype = tuple(rows), self.sum_dtype
        return Sums(
            jnp.full(shape, -jnp.inf, dtype),
            jnp.zeros(shape, dtype),
            jnp.zeros((*shape, num_features), dtype),
        )

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
        halves: Whether devices of the ring take halves of blocks (`halves`).
    """

    row_start: Array | int = 0
    axes: tuple[str, ...] = ()
    count: int = 1
    rank: Array | int = 0
    halves: bool = False

    def source(self, turn: Array | int) -> Array | int:
        """Return the place of the device whose block comes by in a turn."""
        return (self.rank - turn) % self.count

    def start(self, block: Array, turn: Array | int) -> Array | int:
        """Return the number of the first key of the block that comes by in a turn."""
        return self.source(turn) * block.shape[-2]

    def passed_on(self, block: Array) -> Array:
        """Return the block of the device before this one."""
        return self.sent(block, [(i + 1) % self.count for i in range(self.count)])

    def sent(self, block: Array, targets: Sequence[int]) -> Array:
        """Return the block that comes where each device sends its own to one of the ring."""
        if list(targets) == list(range(self.count)):
            return block
        return lax.ppermute(block, self.axes, list(enumerate(targets)))


ALONE = Place()


class Sums(NamedTuple):
    """For each row, of the keys so far: largest score, sum of exponentials, weighted values."""

    largest: Array
    total: Array
    mixed: Array

    @property
    def result(self) -> Array:
        """The result, in the dtype of sums."""
        return self.mixed / self.total[..., None]


# The dim of rows in each field of `Sums`, and in each field of `Pulled`.
SUM_DIMS, PULLED_DIMS = (-1, -1, -2), (-2, -1, -1, -1)


class Pulled(NamedTuple):
    """What the gradients need of each row.

    Attributes:
        cotangent: Cotangent of the result.
        largest: Its largest score.
        total: The sum of its exponentials.
        inner: The inner product of result and cotangent.
    """

    cotangent: Array
    largest: Array
    total: Array
    inner: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of queries, with what they need of keys and values that come by.

    A block is keys and values side by side, so that they are sent at once.

    Attributes:
        attention: What is computed.
        queries: The rows.
        start: Number of the first row.
        others: Other operands of the scores: these rows, all keys.
        num_key_features: Where values begin in a block.
    """

    attention: Attention
    queries: Array
    start: Array | int
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
        return self.attention.scores.of(product, others, self.start, start)

    def over(self, block: Array, start: Array | int, step: _Step, carry: Any) -> Any:
        """Apply `step` to each chunk of a block.

        Args:
            block: The block.
            start: Number of its first key.
            step: What is done with (carry, chunk, its place in the block, number of its first key).
            carry: What goes from one chunk to the next.
        """
        num_keys = block.shape[-2]
        size = chunk_of(num_keys, self.attention.chunk)
        if size == num_keys:
            return step(carry, block, 0, start)

        def chunk(carry: Any, number: Array) -> tuple[Any, None]:
            at = number * size
            taken = lax.dynamic_slice_in_dim(block, at, size, axis=block.ndim - 2)
            return step(carry, taken, at, start + at), None

        return lax.scan(chunk, carry, jnp.arange(num_keys // size))[0]

    def summed(self, block: Array, start: Array | int, sums: Sums) -> Sums:
        """Add the keys and values of a block.

        Args:
            block: The block.
            start: Number of its first key.
            sums: Those of the keys so far.
        """
        attention, dtype = self.attention, self.attention.sum_dtype

        def step(sums: Sums, taken: Array, at: Array | int, start: Array | int) -> Sums:
            del at
            keys, values = self.parts(taken)
            scores = self.scores(attention.product(self.queries, keys), start).astype(dtype)
            largest = jnp.maximum(jnp.max(scores, axis=KEY), sums.largest)
            # Where all is masked with -inf so far, nothing is summed.
            shift = jnp.where(jnp.isneginf(largest), 0, largest)
            weights = jnp.exp(scores - shift[..., None])
            scale = jnp.exp(sums.largest - shift)
            mixed = attention.mixed(weights.astype(attention.weight_dtype), values)
            total = sums.total * scale + jnp.sum(weights, axis=KEY)
            return Sums(largest, total, sums.mixed * scale[..., None] + mixed)

        return self.over(block, start, step, sums)

    def pulled(
        self, block: Array, start: Array | int, pulled: Pulled, carry: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Add what a block gives to queries, and what rows give to its keys and values.

        Args:
            block: The block.
            start: Number of its first key.
            pulled: What the gradients need of the rows.
            carry: Gradients for the queries and for the block so far, in the dtype of sums.
        """
        attention, queries = self.attention, self.queries
        dtype = attention.sum_dtype

        def step(
            carry: tuple[Array, Array], taken: Array, at: Array | int, start: Array | int
        ) -> tuple[Array, Array]:
            of_queries, of_block = carry
            keys, values = self.parts(taken)
            product = attention.product(queries, keys)
            scores, pull = jax.vjp(lambda x: self.scores(x, start), product)
            weights = jnp.exp(scores.astype(dtype) - pulled.largest[..., None])
            weights = weights / pulled.total[..., None]
            of_weights = attention.weights_of(pulled.cotangent, values)
            of_scores = weights * (of_weights - pulled.inner[..., None])
            (of_product,) = pull(of_scores.astype(scores.dtype))
            of_product = of_product.astype(queries.dtype)
            of_keys = attention.of_rows(of_product, queries, 0)
            of_values = attention.of_rows(
                weights.astype(attention.weight_dtype), pulled.cotangent, 1
            )
            share = lax.concatenate([of_keys, of_values], of_keys.ndim - 1)
            of_queries += attention.of_keys(of_product, keys)
            axis, size = share.ndim - 2, share.shape[-2]
            before = lax.dynamic_slice_in_dim(of_block, at, size, axis)
            return of_queries, lax.dynamic_update_slice_in_dim(of_block, before + share, at, axis)

        return self.over(block, start, step, carry)


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
    rows = Rows(
        attention=attention,
        queries=queries,
        start=place.row_start,
        others=others,
        num_key_features=keys.shape[-1],
    )

    def turn(carry: tuple[Sums, Array], number: Array) -> tuple[tuple[Sums, Array], None]:
        sums, taken = carry
        # The next block is under way while this one is computed with.
        return (rows.summed(taken, place.start(taken, number), sums), place.passed_on(taken)), None

    sums = attention.no_sums(queries.shape[:-1], values.shape[-1])
    taken = lax.concatenate([keys, values], keys.ndim - 1)
    if place.count > 1:
        (sums, taken), _ = lax.scan(turn, (sums, taken), jnp.arange(place.count - 1))
    sums = rows.summed(taken, place.start(taken, place.count - 1), sums)
    return sums.result.astype(attention.result_dtype), sums.largest, sums.total


def gradients_of(
    attention: Attention,
    queries: Array,
    keys: Array,
    values: Array,
    pulled: Pulled,
    others: Sequence[Array],
    place: Place = ALONE,
) -> tuple[Array, Array, Array]:
    """Return gradients for queries, keys and values, in the dtype of sums.

    Args:
        attention: What is computed.
        queries: The rows of the device.
        keys: Its block of keys.
        values: Its block of values.
        pulled: What the gradients need of its rows.
        others: Other operands of the scores: rows of the device, all keys.
        place: Where it stands.
    """
    rows = Rows(
        attention=attention,
        queries=queries,
        start=place.row_start,
        others=others,
        num_key_features=keys.shape[-1],
    )
    taken = lax.concatenate([keys, values], keys.ndim - 1)
    nothing = jnp.zeros(taken.shape, attention.sum_dtype)

    def share(of_queries: Array, taken: Array, number: Any) -> tuple[Array, Array]:
        return rows.pulled(taken, place.start(taken, number), pulled, (of_queries, nothing))

    def last(of_queries: Array, of_block: Array, taken: Array, number: Any) -> tuple[Array, Array]:
        # What others gave to the block comes while its share is computed.
        given = place.passed_on(of_block)
        of_queries, own = share(of_queries, taken, number)
        return of_queries, given + own

    def turn(carry: tuple[Array, Array, Array], number: Array) -> Any:
        of_queries, of_block, taken = carry
        return (*last(of_queries, of_block, taken, number), place.passed_on(taken)), None

    of_queries, of_block = share(jnp.zeros(queries.shape, attention.sum_dtype), taken, 0)
    if place.count == 1:
        return of_queries, *rows.parts(of_block)
    taken = place.passed_on(taken)
    if place.count > SHORTEST_RING:
        carry = of_queries, of_block, taken
        (of_queries, of_block, taken), _ = lax.scan(turn, carry, jnp.arange(1, place.count - 1))
    of_queries, of_block = last(of_queries, of_block, taken, place.count - 1)
    return of_queries, *rows.parts(place.passed_on(of_block))
