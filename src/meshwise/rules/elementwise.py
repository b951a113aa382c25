"""Element-wise primitives: every result dim is a parallel loop.

In JAX 0.10 an operand may have lower rank (a scalar) or dims of size 1; a loop touches an operand
only where its dim has the size of the result's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from meshwise.graph.loops import DimMap, LoopRule
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.narrow import is_narrow
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards

# Operands that a primitive is linear in: each tuple is one group that may be partial together.
_LINEAR = {
    "add": ((0, 1),),
    "add_any": ((0, 1),),
    "complex": ((0, 1),),
    "copy": ((0,),),
    "div": ((0,),),
    "imag": ((0,),),
    "mul": ((0,), (1,)),
    "neg": ((0,),),
    "real": ((0,),),
    "stop_gradient": ((0,),),
    "sub": ((0, 1),),
}

# One name a line would be a page; the text says nothing but the names.
_OTHERS = """
    abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz conj
    convert_element_type cos cosh digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt
    igamma igamma_grad_a igammac integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to
    max min ne nextafter not or polygamma population_count pow reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square tan tanh threefry2x32 xor zeta
"""

# Primitives that the oldest supported JAX lacks: `one_minus_square` is new in 0.11.
NEWER = ("log2", "one_minus_square")


def _dim_map(shape: tuple[int, ...], result: tuple[int, ...], dims: DimMap) -> DimMap:
    if len(shape) != len(result):
        return dims_like(shape)
    return tuple(
        follows if size == whole else ()
        for size, whole, follows in zip(shape, result, dims, strict=True)
    )


def _holds(source: DTypeLike, target: DTypeLike) -> bool:
    """Return whether a cast between floating types keeps every bit of a sum of parts."""
    if is_narrow(source) or is_narrow(target):
        return False
    floats = all(jnp.issubdtype(dtype, jnp.inexact) for dtype in (source, target))
    return floats and jnp.promote_types(source, target) == target


def linear_groups(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Return groups of operands that may be partial together."""
    source, target = eqn.in_avals[-1].dtype, eqn.out_avals[0].dtype
    if eqn.name == "select_n":
        # The predicate is replicated, all cases are partial: a replicated case counts once.
        return (tuple(range(1, len(eqn.in_avals))),)
    if eqn.name == "convert_element_type":
        # No partial sums through a narrowing cast: each term would be rounded.
        return ((0,),) if _holds(source, target) else ()
    if eqn.name == "div" and not jnp.issubdtype(source, jnp.inexact):
        return ()
    if eqn.name == "mul" and source != target and not _holds(source, target):
        return ()
    return _LINEAR.get(eqn.name, ())


def elementwise_rule(eqn: Equation) -> LoopRule:
    """Return one parallel loop a result dim of size above 1."""
    result = eqn.out_avals[0].shape
    loops = LoopList()
    dims = tuple(loops.add_dims(result))
    return LoopRule(
        loops=loops.done(),
        operands=tuple(_dim_map(aval.shape, result, dims) for aval in eqn.in_avals),
        results=tuple(_dim_map(aval.shape, result, dims) for aval in eqn.out_avals),
        linear=linear_groups(eqn),
    )


def bitcast_rule(eqn: Equation) -> LoopRule:
    """Dims before the one that holds the parts of an element are loops."""
    before, after = eqn.in_avals[0].shape, eqn.out_avals[0].shape
    shared = min(len(before), len(after))
    loops = LoopList()
    dims = loops.add_dims(after[:shared])
    maps = [(*dims, *dims_like(shape[shared:])) for shape in (before, after)]
    return LoopRule(loops.done(), (maps[0],), (maps[1],))


def local_mulhi(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the high word of a product, from products of half words.

    XLA has no way back from its own form of the operator to StableHLO, which it takes where a
    program has several devices: `failed to legalize operation 'mhlo.unknown'`.  Source: seen with
    JAX 0.10.2 on CPU.
    """
    del shards
    dtype = eqn.out_avals[0].dtype
    bits = dtype.itemsize * 8
    unsigned = jnp.dtype(f"uint{bits}")
    a, b = (jnp.asarray(operand).astype(unsigned) for operand in operands)
    half, low = unsigned.type(bits // 2), unsigned.type(2 ** (bits // 2) - 1)
    middle = (a >> half) * (b & low) + (((a & low) * (b & low)) >> half)
    cross = (a & low) * (b >> half) + (middle & low)
    high = (a >> half) * (b >> half) + (middle >> half) + (cross >> half)
    if jnp.issubdtype(dtype, jnp.signedinteger):
        # A negative operand was taken for itself and 2 ** bits.
        negative = [jnp.asarray(operand) < 0 for operand in operands]
        zero = jnp.zeros((), unsigned)
        high = high - jnp.where(negative[0], b, zero) - jnp.where(negative[1], a, zero)
    return [high.astype(dtype)]


TABLE: Mapping[str, PrimitiveRule] = {
    "mulhi": PrimitiveRule(elementwise_rule, local_mulhi),
    **{name: PrimitiveRule(elementwise_rule) for name in (*_LINEAR, *_OTHERS.split(), *NEWER)},
    "bitcast_convert_type": PrimitiveRule(bitcast_rule),
}
