"""Padded values: what is known of the elements beyond the end, and how they are masked.

They are garbage unless known to be zero.  Zero stays zero only through what is listed here:
whether a product with zero is zero is known only if the other factor is zero too, since it may be
infinite or not a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.rules.primitive import Equation
from meshwise.trace.time.monoids import identity_of

# Reductions whose neutral element is zero.
OF_ZERO = (SUM, "or")

# Primitives with a zero result where all operands are zero; the operands that count.
_ALL = ()
_ZERO_STAYS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("add", "add_any", "sub", "mul", "neg", "max", "min", "abs", "sign"), _ALL),
    **dict.fromkeys(("convert_element_type", "copy", "optimization_barrier", "name"), _ALL),
    **dict.fromkeys(("stop_gradient", "broadcast_in_dim", "reshape", "transpose", "squeeze"), _ALL),
    **dict.fromkeys(("rev", "slice", "concatenate", "split", "reduce_sum"), _ALL),
    "dynamic_slice": (0,),
}


@dataclass(frozen=True, slots=True)
class PaddedValue:
    """A traced value.

    Attributes:
        array: The value.
        zero: Dims beyond whose old end all elements are zero.
        neutral: Dims beyond whose old end all elements are neutral in a reduction, with its kind,
            where that is not zero; then `zero` is empty.
    """

    array: Any
    zero: frozenset[int] = frozenset()
    neutral: frozenset[tuple[int, str]] = frozenset()


def padded_to(value: PaddedValue, sizes: Mapping[int, int]) -> PaddedValue:
    """Return a value with dims extended by zeros; `sizes` by dim."""
    shape = jnp.shape(value.array)
    config = [(0, sizes.get(dim, size) - size, 0) for dim, size in enumerate(shape)]
    array = jnp.asarray(value.array)
    array = lax.pad(array, jnp.zeros((), array.dtype), config)
    return PaddedValue(array, value.zero | frozenset(sizes))


def sliced_to(value: PaddedValue, sizes: Mapping[int, int]) -> PaddedValue:
    """Return a value with dims cut back; `sizes` by dim."""
    limits = [sizes.get(dim, size) for dim, size in enumerate(jnp.shape(value.array))]
    array = lax.slice(value.array, [0] * len(limits), limits)
    return PaddedValue(array, value.zero - frozenset(sizes))


def masked(value: PaddedValue, dim: int, size: int, kind: str) -> PaddedValue:
    """Return the value with the neutral element of a reduction beyond `size` along a dim."""
    array = value.array
    neutral = identity_of(kind, array.dtype)
    is_zero = not neutral
    if (dim in value.zero) if is_zero else ((dim, kind) in value.neutral):
        return value
    position = lax.broadcasted_iota(jnp.int32, array.shape, dim)
    inside = lax.lt(position, jnp.full_like(position, size))
    array = lax.select(inside, array, lax.full_like(array, neutral))
    # Beyond the ends of two dims the last one counts.
    if is_zero:
        return PaddedValue(array, value.zero | {dim})
    same = frozenset(known for known in value.neutral if known[1] == kind)
    return PaddedValue(array, neutral=same | {(dim, kind)})


def zero_dims(
    eqn: Equation,
    rule: LoopRule,
    loops: Iterable[int],
    operands: Sequence[PaddedValue],
    result: int,
) -> frozenset[int]:
    """Dims of a result whose elements beyond the old end are known to be zero.

    Args:
        eqn: The equation.
        rule: Its loops.
        loops: Those that are padded.
        operands: Its operands, as they entered.
        result: Which result.
    """
    if eqn.name not in _ZERO_STAYS:
        return frozenset()
    counted = _ZERO_STAYS[eqn.name] or range(len(operands))
    found: set[int] = set()
    for dim, follows in enumerate(rule.results[result]):
        if len(follows) != 1 or follows[0] not in loops:
            continue
        at = [[d for d, other in enumerate(rule.operands[k]) if other == follows] for k in counted]
        if at and all(
            dims and set(dims) <= operands[k].zero for k, dims in zip(counted, at, strict=True)
        ):
            found.add(dim)
    return frozenset(found)
