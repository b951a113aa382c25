"""A ring under a causal mask: a row needs no key after it, so half of the scores are left out.

Cut into 2 n halves of blocks, rows and keys are exchanged so that each of n devices has one from
the front and the one that lies as far from the back: `i` and `2 n - 1 - i`.  Before blocks go on,
each device computes with its own keys (`diagonal`).  In each turn it computes two pairs of halves:
the rows in the back need the front half of every block, and the second pair is front with front,
where the block is of a device before, or back with back, where it is of one after.

Source: halves are paired as in Dubey et al. 2024 ("The Llama 3 Herd of Models", section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.graph.chunks import num_query_blocks
from meshwise.rules.attention.blocks import (
    PULLED_DIMS,
    SHORTEST_RING,
    SUM_DIMS,
    Attention,
    Place,
    Pulled,
    Rows,
    Sums,
)
from meshwise.rules.attention.diagonal import Diagonal


class _Pair(NamedTuple):
    """What a device has of something: half of a block in front, and the one in the back."""

    front: Any
    back: Any

    def chosen(self, is_front: Array | bool) -> Any:
        """Return one of the two."""
        return jax.tree.map(lambda x, y: jnp.where(is_front, x, y), self.front, self.back)

    def replaced(self, is_front: Array | bool, half: Any) -> _Pair:
        """Return the pair with another half in the place of the chosen one."""
        return _Pair(
            jax.tree.map(lambda new, old: jnp.where(is_front, new, old), half, self.front),
            jax.tree.map(lambda new, old: jnp.where(is_front, old, new), half, self.back),
        )


def _owners(count: int, first: int) -> list[int]:
    """Return for each device which one has its first or second half after the exchange."""
    halves = range(first, 2 * count, 2)
    return [half if half < count else 2 * count - 1 - half for half in halves]


def _inverse(targets: Sequence[int]) -> list[int]:
    return sorted(range(len(targets)), key=targets.__getitem__)


def _exchanged(block: Array, dim: int, place: Place) -> _Pair:
    """Return the halves that a device computes with, of blocks that lie in their order."""
    first, second = jnp.split(block, 2, axis=dim)
    even = place.sent(first, _owners(place.count, 0))
    odd = place.sent(second, _owners(place.count, 1))
    is_even = place.rank % 2 == 0
    return _Pair(jnp.where(is_even, even, odd), jnp.where(is_even, odd, even))


def _returned(pair: _Pair, dim: int, place: Place) -> Array:
    """Return the block of a device, of halves that were exchanged."""
    is_even = place.rank % 2 == 0
    even = jnp.where(is_even, pair.front, pair.back)
    odd = jnp.where(is_even, pair.back, pair.front)
    first = place.sent(even, _inverse(_owners(place.count, 0)))
    second = place.sent(odd, _inverse(_owners(place.count, 1)))
    return lax.concatenate([first, second], first.ndim + dim)


class _Ring(NamedTuple):
    """Halves of the rows of a device, and pairs that it computes with, one after the other.

    Attributes:
        attention: What is computed.
        place: Where the device stands.
        queries: Its halves of the queries.
        num_key_features: Where values begin in a block.
    """

    attention: Attention
    place: Place
    queries: _Pair
    num_key_features: int

    def starts(self, device: Array | int) -> _Pair:
        """Return the numbers at which the halves of a device begin."""
        size = self.queries.front.shape[-2]
        return _Pair(device * size, (2 * self.place.count - 1 - device) * size)

    def rows(self, is_front: Array) -> Rows:
        """Return one of the halves of the rows."""
        return Rows(
            attention=self.attention,
            queries=self.queries.chosen(is_front),
            start=self.starts(self.place.rank).chosen(is_front),
            others=(),
            num_key_features=self.num_key_features,
        )

    def own(self, block: Array) -> Diagonal:
        """Return the rows of the device with its own keys, those in front first.

        Args:
            block: The halves of its keys and values.
        """
        half = self.queries.front.shape[-2]
        size = half // num_query_blocks(half, self.attention.chunk)
        within = jnp.arange(0, half, size, dtype=jnp.int32)
        return Diagonal(
            attention=self.attention,
            queries=lax.concatenate(self.queries, self.queries.front.ndim - 2),
            keys_values=block,
            num_key_features=self.num_key_features,
            starts=jnp.concatenate([start + within for start in self.starts(self.place.rank)]),
        )

    def over(self, taken: Array, turn: Array | int, step: _Step, carry: Any) -> Any:
        """Apply `step` to both pairs of halves that the mask does not hide.

        Args:
            taken: The halves of keys and values that come by in a turn, from another device.
            turn: The turn.
            step: What is done with (carry, rows, half of a block, number of its first key, whether
                the rows are those in front, whether the half is).
            carry: What goes from one pair to the next.
        """
        source = self.place.source(turn)
        # First the back with the front half of the block; then front with front, or back with back.
        is_before = jnp.asarray(source < self.place.rank)
        no, yes = jnp.asarray(False), jnp.asarray(True)
        rows, blocks = [no, is_before], [yes, is_before]
        block, starts = _halves(taken), self.starts(source)

        def pair(carry: Any, which: tuple[Array, Array]) -> tuple[Any, None]:
            of_rows, of_block = which
            half, start = block.chosen(of_block), starts.chosen(of_block)
            return step(carry, self.rows(of_rows), half, start, of_rows, of_block), None

        return lax.scan(pair, carry, (jnp.stack(rows), jnp.stack(blocks)))[0]


_Step: TypeAlias = Callable[[Any, Rows, Array, Array, Array, Array], Any]


def attention_in_halves(
    attention: Attention, queries: Array, keys: Array, values: Array, place: Place
) -> tuple[Array, Array, Array]:
    """Return the result for the rows of one device, their largest scores and their sums.

    Args:
        attention: What is computed, under a causal mask.
        queries: The rows of the device.
        keys: Its block of keys.
        values: Its block of values.
        place: Where it stands.
    """
    pairs = [_exchanged(x, -2, place) for x in (queries, keys, values)]
    ring = _Ring(attention, place, pairs[0], keys.shape[-1])

    def step(
        sums: _Pair, rows: Rows, block: Array, start: Array, is_front: Array, _: Array
    ) -> _Pair:
        return sums.replaced(is_front, rows.summed(block, start, sums.chosen(is_front)))

    def turn(carry: tuple[_Pair, Array], number: Array) -> tuple[tuple[_Pair, Array], None]:
        sums, taken = carry
        # The next block is under way while this one is computed with.
        return (ring.over(taken, number, step, sums), place.passed_on(taken)), None

    taken = _side_by_side(pairs[1], pairs[2])
    nothing = attention.no_sums(queries.shape[:-1], values.shape[-1])
    own = zip(ring.own(taken).summed(nothing), SUM_DIMS, strict=True)
    parts = [_halves(x, dim) for x, dim in own]
    sums = _Pair(Sums(*(x.front for x in parts)), Sums(*(x.back for x in parts)))
    taken = place.passed_on(taken)
    if place.count > SHORTEST_RING:
        (sums, taken), _ = lax.scan(turn, (sums, taken), jnp.arange(1, place.count - 1))
    sums = ring.over(taken, place.count - 1, step, sums)
    results = [x.result.astype(attention.result_dtype) for x in sums]
    return (
        _returned(_Pair(*results), -2, place),
        _returned(_Pair(*(x.largest for x in sums)), -1, place),
        _returned(_Pair(*(x.total for x in sums)), -1, place),
    )


def gradients_in_halves(
    attention: Attention,
    queries: Array,
    keys: Array,
    values: Array,
    pulled: Pulled,
    place: Place,
) -> tuple[Array, Array, Array]:
    """Return gradients for queries, keys and values, in the dtype of sums.

    Args:
        attention: What is computed, under a causal mask.
        queries: The rows of the device.
        keys: Its block of keys.
        values: Its block of values.
        pulled: What the gradients need of its rows.
        place: Where it stands.
    """
    pairs = [_exchanged(x, -2, place) for x in (queries, keys, values)]
    needed = [_exchanged(x, dim, place) for x, dim in zip(pulled, PULLED_DIMS, strict=True)]
    of_rows = _Pair(Pulled(*(x.front for x in needed)), Pulled(*(x.back for x in needed)))
    ring = _Ring(attention, place, pairs[0], keys.shape[-1])

    def step(
        carry: tuple[_Pair, _Pair],
        rows: Rows,
        block: Array,
        start: Array,
        is_front: Array,
        is_front_block: Array,
    ) -> tuple[_Pair, _Pair]:
        of_queries, of_block = carry
        before = of_queries.chosen(is_front), of_block.chosen(is_front_block)
        after = rows.pulled(block, start, of_rows.chosen(is_front), before)
        return of_queries.replaced(is_front, after[0]), of_block.replaced(is_front_block, after[1])

    taken = _side_by_side(pairs[1], pairs[2])
    nothing = jnp.zeros(taken.shape, attention.sum_dtype)

    def last(of_queries: _Pair, of_block: Array, taken: Array, number: Any) -> tuple[_Pair, Array]:
        # What others gave to the block comes while its share is computed.
        given = place.passed_on(of_block)
        of_queries, own = ring.over(taken, number, step, (of_queries, _halves(nothing)))
        return of_queries, given + lax.concatenate(own, taken.ndim - 2)

    def turn(carry: tuple[_Pair, Array, Array], number: Array) -> Any:
        of_queries, of_block, taken = carry
        return (*last(of_queries, of_block, taken, number), place.passed_on(taken)), None

    joined = zip(needed, PULLED_DIMS, strict=True)
    own = Pulled(*(lax.concatenate(x, x.front.ndim + dim) for x, dim in joined))
    none = jnp.zeros(queries.shape, attention.sum_dtype)
    of_own, of_block = ring.own(taken).pulled(own, none, nothing)
    of_queries = _halves(of_own)
    taken = place.passed_on(taken)
    if place.count > SHORTEST_RING:
        carry = of_queries, of_block, taken
        (of_queries, of_block, taken), _ = lax.scan(turn, carry, jnp.arange(1, place.count - 1))
    of_queries, of_block = last(of_queries, of_block, taken, place.count - 1)
    parts = ring.rows(jnp.asarray(True)).parts(place.passed_on(of_block))
    gradients = (of_queries, *map(_halves, parts))
    of_queries, of_keys, of_values = (_returned(x, -2, place) for x in gradients)
    return of_queries, of_keys, of_values


def _halves(block: Array, dim: int = -2) -> _Pair:
    """Return the halves of a block, the front first."""
    return _Pair(*jnp.split(block, 2, axis=dim))


def _side_by_side(keys: _Pair, values: _Pair) -> Array:
    """Return a block: halves of keys and values side by side, the front first."""
    halves = [lax.concatenate(pair, pair[0].ndim - 1) for pair in zip(keys, values, strict=True)]
    return lax.concatenate(halves, halves[0].ndim - 2)
