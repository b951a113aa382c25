"""Random numbers: threefry by global position, bit-equal to one device; keys are per element.

With `jax_threefry_partitionable` element i of a draw is threefry of the two 32-bit words of its
flat index, so each device draws its own part.  Other generators draw the whole on every device
and keep the local part; the rule says so.

Source: JAX 0.10.2, `jax.random.bits` with the partitionable threefry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core.primitives import threefry2x32_p

from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind

_THREEFRY = "key<fry>"
_WORD = 2**32
_HALF = 2**16
# Threefry with 20 rounds: five of add, rotate, xor a round and the key injections; counted by hand.
_FLOP_PER_DRAW = 100.0


def is_threefry(dtype: object) -> bool:
    """Return whether a type is that of keys of JAX's default generator.

    Args:
        dtype: The type.
    """
    return str(dtype) == _THREEFRY


def bits_rule(eqn: Equation) -> LoopRule:
    """Each result dim is a loop; dims of the keys too."""
    loops = LoopList()
    keys = eqn.in_avals[0]
    result = loops.add_dims(eqn.out_avals[0].shape)
    rank = len(keys.shape)
    if not is_threefry(keys.dtype):
        whole = f"{keys.dtype} draws depend on the whole shape: drawn whole, then sliced"
    elif not jax.config.jax_threefry_partitionable:  # pyright: ignore[reportAttributeAccessIssue]
        whole = "jax_threefry_partitionable is off: drawn whole, then sliced"
    else:
        return LoopRule(loops.done(), (tuple(result[:rank]),), (tuple(result),))
    return LoopRule(loops.done(), (dims_like(keys.shape),), (tuple(result),), whole=whole)


def _times(index: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
    """Return `index * stride` as (high, low) words; `index` is uint32, the product below 2**64."""
    low_stride = stride % _WORD
    a, b = index & (_HALF - 1), index >> 16
    c, d = jnp.uint32(low_stride % _HALF), jnp.uint32(low_stride // _HALF)
    # Schoolbook product of 16-bit halves; no partial sum leaves 32 bits.
    low = a * c
    middle = b * c + (low >> 16)
    cross = a * d + (middle & (_HALF - 1))
    high = b * d + (middle >> 16) + (cross >> 16)
    high = high + index * jnp.uint32(stride // _WORD)
    return high, index * jnp.uint32(low_stride)


def flat_words(
    indices: Sequence[jax.Array], shape: Sequence[int]
) -> tuple[jax.Array | None, jax.Array]:
    """Return (high, low) words of the flat index of each element of a tile.

    Args:
        indices: For each dim the global indices (int32) of the local elements.
        shape: Global shape.

    Returns:
        uint32 arrays of the local shape; the high word is None where it is 0 throughout.
    """
    local = tuple(index.shape[0] for index in indices)
    low = jnp.zeros(local, jnp.uint32)
    high = jnp.zeros(local, jnp.uint32) if math.prod(shape) > _WORD else None
    for dim, index in enumerate(indices):
        stride = math.prod(shape[dim + 1 :])
        words = index.astype(jnp.uint32)
        spread = [1] * len(local)
        spread[dim] = local[dim]
        if high is None:
            low = low + (words * jnp.uint32(stride)).reshape(spread)
            continue
        add_high, add_low = (word.reshape(spread) for word in _times(words, stride))
        total = low + add_low
        carry = (total < low).astype(jnp.uint32)
        high, low = high + add_high + carry, total
    return high, low


def local_bits(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Draw the local elements by their global positions."""
    if shards.rule.whole:
        return [_slice_whole(shards, rebind(eqn, operands)[0])]
    if all(shards.parts(loop) == 1 for loop in range(len(shards.rule.loops))):
        return rebind(eqn, operands)
    (keys,) = operands
    rank, shape = len(eqn.in_avals[0].shape), eqn.params["shape"]
    result = shards.result_shape(eqn)
    if 0 in result:
        return [jnp.zeros(result, eqn.out_avals[0].dtype)]
    follows = shards.rule.results[0][rank:]
    indices = [
        shards.global_index(loops[0]) if loops else jnp.zeros(size, jnp.int32)
        for loops, size in zip(follows, shape, strict=True)
    ]
    high, low = flat_words(indices, shape)
    key_words = jax.random.key_data(keys)
    spread = lambda word, dims: lax.broadcast_in_dim(word, result, dims)  # noqa: E731
    key_dims, element_dims = tuple(range(rank)), tuple(range(rank, len(result)))
    counts = [
        jnp.zeros(result, jnp.uint32) if high is None else spread(high, element_dims),
        spread(low, element_dims),
    ]
    first, second = threefry2x32_p.bind(
        spread(key_words[..., 0], key_dims), spread(key_words[..., 1], key_dims), *counts
    )
    dtype = eqn.out_avals[0].dtype
    if eqn.params["bit_width"] == 64:
        wide = lax.shift_left(first.astype(dtype), jnp.full(result, 32, dtype))
        return [wide | second.astype(dtype)]
    return [(first ^ second).astype(dtype)]


def _slice_whole(shards: Shards, value: jax.Array) -> jax.Array:
    for dim, loops in enumerate(shards.rule.results[0]):
        if loops and shards.parts(loops[0]) > 1:
            value = jnp.take(value, shards.global_index(loops[0]), axis=dim, mode="clip")
    return value


def keys_rule(eqn: Equation) -> LoopRule:
    """Leading dims that operands and result share are loops; words and new keys stay whole."""
    shapes = [aval.shape for aval in (*eqn.in_avals, *eqn.out_avals)]
    avals = (*eqn.in_avals, *eqn.out_avals)
    threefry = any(is_threefry(aval.dtype) for aval in avals)
    shared = min(len(shape) for shape in shapes) if threefry else 0
    shared = next((d for d in range(shared) if len({s[d] for s in shapes}) > 1), shared)
    loops = LoopList()
    dims = loops.add_dims(shapes[-1][:shared])
    maps = [(*dims, *dims_like(shape[shared:])) for shape in shapes]
    count = len(eqn.in_avals)
    return LoopRule(loops.done(), tuple(maps[:count]), tuple(maps[count:]))


def gamma_rule(eqn: Equation) -> LoopRule:
    """Dims of the keys are loops; each key is split over all its elements."""
    keys, shape = eqn.in_avals[0], eqn.in_avals[1].shape
    loops = LoopList()
    shared = len(keys.shape) if is_threefry(keys.dtype) else 0
    dims = tuple(loops.add_dims(shape[:shared]))
    of_keys = (*dims, *dims_like(keys.shape[shared:]))
    follows = (*dims, *dims_like(shape[shared:]))
    return LoopRule(
        loops.done(), (of_keys, follows), (follows,), whole="a key is split over all its elements"
    )


def _bits_flop(eqn: Equation) -> float:
    return _FLOP_PER_DRAW * math.prod(eqn.out_avals[0].shape)


_KEYS = (
    "random_fold_in",
    "random_split",
    "random_seed",
    "random_wrap",
    "random_unwrap",
    "random_clone",
)

TABLE = {
    "random_bits": PrimitiveRule(bits_rule, local_bits, _bits_flop),
    "random_gamma": PrimitiveRule(gamma_rule, flop=_bits_flop),
    **{name: PrimitiveRule(keys_rule) for name in _KEYS},
}
