"""Attention on one device: rows of queries that stay, blocks of keys and values that come by.

The softmax runs on: a block with a larger score scales what was summed before it.  So no more than
the scores of one block are held.  Gradients make the scores of each block again, and need of each
row what the forward pass kept: its largest score, and the sum of its exponentials.

Source: Milakov and Gimelshein 2018 (the running softmax); Liu, Zaharia and Abbeel 2023 (the ring).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.rules.attention.scores import KEY, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What an attention operator computes.

    Queries are (batch ..., group ..., row, feature), keys and values (batch ..., key, feature):
    the heads of a group share them.

    Attributes:
        num_batch: Number of batch dims.
        scores: What becomes of the first product.
        score_dtype: Dtype of the first product.
        weight_dtype: Dtype in which weights enter the second product.
        result_dtype: Dtype of the result.
        precision: Precision of the two products.
    """

    num_batch: int
    scores: Scores
    score_dtype: str
    weight_dtype: str
    result_dtype: str
    precision: tuple[Any, Any] = (None, None)

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
        """Return the precision of the gradient of a product; an algorithm is for its own types."""
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
    """What a row has of the blocks so far: largest score, sum of exponentials, sum of values."""

    largest: Array
    total: Array
    mixed: Array


@dataclass(frozen=True, slots=True)
class _Block:
    """Keys and values on their way, with what they are compared with."""

    attention: Attention
    place: Place
    queries: Array
    others: Sequence[Array]
    num_key_features: int

    def parts(self, block: Array) -> tuple[Array, Array]:
        """Return keys and values of a block."""
        at = self.num_key_features
        return block[..., :at], block[..., at:]

    def scores(self, product: Array, turn: Array | int) -> Array:
        """Return the scores of what comes by in a turn, in the dtype in which the softmax runs."""
        size = product.shape[KEY]
        start = (self.place.rank - turn) % self.place.count * size
        others = [
            lax.dynamic_slice_in_dim(x, start, size, axis=x.ndim - 1) if x.shape[KEY] > size else x
            for x in self.others
        ]
        return self.attention.scores.of(product, others, self.place.row_start, start)


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
    block = _Block(attention, place, queries, others, keys.shape[-1])

    def after(sums: _Sums | None, taken: Array, turn: Array | int) -> _Sums:
        keys, values = block.parts(taken)
        scores = block.scores(attention.product(queries, keys), turn).astype(attention.sum_dtype)
        largest = jnp.max(scores, axis=KEY)
        if sums is not None:
            largest = jnp.maximum(largest, sums.largest)
        # Where all is masked with -inf so far, nothing is summed.
        shift = jnp.where(jnp.isneginf(largest), 0, largest)
        weights = jnp.exp(scores - shift[..., None])
        total = jnp.sum(weights, axis=KEY)
        mixed = attention.mixed(weights.astype(attention.weight_dtype), values)
        if sums is None:
            return _Sums(largest, total, mixed)
        scale = jnp.exp(sums.largest - shift)
        return _Sums(largest, sums.total * scale + total, sums.mixed * scale[..., None] + mixed)

    taken = lax.concatenate([keys, values], keys.ndim - 1)
    if place.count == 1:
        sums = after(None, taken, 0)
    else:
        rows = queries.shape[:-1]
        dtype = attention.sum_dtype
        start = _Sums(
            jnp.full(rows, -jnp.inf, dtype),
            jnp.zeros(rows, dtype),
            jnp.zeros((*rows, values.shape[-1]), dtype),
        )

        def turn(carry: tuple[_Sums, Array], number: Array) -> tuple[tuple[_Sums, Array], None]:
            sums, taken = carry
            # The next block is under way while this one is computed with.
            return (after(sums, taken, number), place.passed_on(taken)), None

        (sums, taken), _ = lax.scan(turn, (start, taken), jnp.arange(place.count - 1))
        sums = after(sums, taken, place.count - 1)
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
    at = keys.shape[-1]
    block = _Block(attention, place, queries, others, at)
    largest, total = sums

    def shares(taken: Array, turn: Array | int) -> tuple[Array, Array]:
        """Return what one block gives to queries, and to its own keys and values."""
        keys, values = block.parts(taken)
        product = attention.product(queries, keys)
        scores, pull = jax.vjp(lambda x: block.scores(x, turn), product)
        shifted = scores.astype(attention.sum_dtype) - largest[..., None]
        weights = jnp.exp(shifted) / total[..., None]
        pulled = weights * (attention.weights_of(cotangent, values) - inner[..., None])
        (of_product,) = pull(pulled.astype(scores.dtype))
        of_product = of_product.astype(queries.dtype)
        of_keys = attention.of_rows(of_product, queries, 0)
        of_values = attention.of_rows(weights.astype(attention.weight_dtype), cotangent, 1)
        both = lax.concatenate([of_keys, of_values], of_keys.ndim - 1)
        return attention.of_keys(of_product, keys), both

    taken = lax.concatenate([keys, values], keys.ndim - 1)
    if place.count == 1:
        of_queries, both = shares(taken, 0)
    else:
        dtype = attention.sum_dtype
        start = jnp.zeros(queries.shape, dtype), jnp.zeros(taken.shape, dtype), taken

        def turn(carry: tuple[Array, Array, Array], number: Array) -> Any:
            of_queries, both, taken = carry
            more, share = shares(taken, number)
            following = place.passed_on(taken)
            return (of_queries + more, place.passed_on(both + share), following), None

        (of_queries, both, taken), _ = lax.scan(turn, start, jnp.arange(place.count - 1))
        more, share = shares(taken, place.count - 1)
        of_queries, both = of_queries + more, place.passed_on(both + share)
    return of_queries, both[..., :at], both[..., at:]
