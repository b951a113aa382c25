"""Element-wise primitives: every result dim is a parallel loop.

In JAX 0.10 an operand may have lower rank (a scalar) or dims of size 1; a loop touches an operand
only where its dim has the size of the result's.
"""

from __future__ import annotations

from meshwise.graph.loops import DimMap, Loop, LoopRule
from meshwise.rules.primitive import Equation, PrimitiveRule

# Operands that a primitive is linear in: each tuple is one group that may be partial together.
_JOINTLY_LINEAR = {
    "add": ((0, 1),),
    "add_any": ((0, 1),),
    "sub": ((0, 1),),
    "neg": ((0,),),
    "copy": ((0,),),
    "stop_gradient": ((0,),),
    "real": ((0,),),
    "imag": ((0,),),
    "mul": ((0,), (1,)),
    "div": ((0,),),
}

_NONLINEAR = (
    "abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz "
    "complex conj cos cosh digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma "
    "igamma_grad_a igammac integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max "
    "min ne nextafter not or polygamma population_count pow reduce_precision "
    "regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square tan tanh threefry2x32 xor zeta "
    "convert_element_type bitcast_convert_type"
).split()  # noqa: SIM905 (a list of words reads better)

# Result follows a block of bits: only same-width casts keep the dims.
_FLOATS = ("float", "bfloat", "complex")


def _dim_map(shape: tuple[int, ...], result: tuple[int, ...], loops: dict[int, int]) -> DimMap:
    if len(shape) != len(result):
        return ((),) * len(shape)
    return tuple(
        (loops[dim],) if size == result[dim] and dim in loops else ()
        for dim, size in enumerate(shape)
    )


def _linear(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    name = eqn.name
    if name == "select_n" and len(eqn.in_avals) > 1:
        # Predicate replicated, all cases partial: replicated cases are masked to one rank.
        return (tuple(range(1, len(eqn.in_avals))),)
    if name == "convert_element_type":
        source, target = eqn.in_avals[0].dtype, eqn.out_avals[0].dtype
        widening = target.itemsize >= source.itemsize
        floats = all(str(d).startswith(_FLOATS) for d in (source, target))
        return ((0,),) if widening and floats else ()
    return _JOINTLY_LINEAR.get(name, ())


def elementwise_rule(eqn: Equation) -> LoopRule:
    """One parallel loop a result dim of size above 1."""
    result = eqn.out_avals[0].shape
    if eqn.name == "bitcast_convert_type" and eqn.in_avals[0].shape != result:
        keep = min(len(result), len(eqn.in_avals[0].shape))
        loop_of = {dim: i for i, dim in enumerate(range(keep))}
        loops = tuple(Loop(result[dim]) for dim in range(keep))
        pad = lambda shape: tuple((loop_of[d],) if d < keep else () for d in range(len(shape)))  # noqa: E731
        return LoopRule(loops, (pad(eqn.in_avals[0].shape),), (pad(result),))
    loop_of = {dim: i for i, dim in enumerate(d for d, size in enumerate(result) if size > 1)}
    return LoopRule(
        loops=tuple(Loop(result[dim]) for dim in loop_of),
        operands=tuple(_dim_map(aval.shape, result, loop_of) for aval in eqn.in_avals),
        results=tuple(_dim_map(aval.shape, result, loop_of) for aval in eqn.out_avals),
        linear=_linear(eqn),
    )


def barrier_rule(eqn: Equation) -> LoopRule:
    """`optimization_barrier`: each result follows its own operand; nothing is shared."""
    loops: list[Loop] = []
    maps: list[DimMap] = []
    for aval in eqn.in_avals:
        dims: list[tuple[int, ...]] = []
        for size in aval.shape:
            if size > 1:
                dims.append((len(loops),))
                loops.append(Loop(size))
            else:
                dims.append(())
        maps.append(tuple(dims))
    return LoopRule(tuple(loops), tuple(maps), tuple(maps))


TABLE = {
    **{name: PrimitiveRule(elementwise_rule) for name in (*_JOINTLY_LINEAR, *_NONLINEAR)},
}
