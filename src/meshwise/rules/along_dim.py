"""Primitives that work along some dims: those stay whole, all others are parallel.

Cumulative sums and their like, sorts, the largest k, Fourier transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind

_DimsOf = Callable[[Equation], Iterable[int]]


def _rule(whole_dims: _DimsOf, *, linear: bool = False) -> Callable[[Equation], LoopRule]:
    """Return the rule of a primitive whose operands and results have the same dims."""

    def rule(eqn: Equation) -> LoopRule:
        shape = eqn.in_avals[0].shape
        whole = sorted({dim % len(shape) for dim in whole_dims(eqn)})
        loops = LoopList()
        dims = tuple(loops.add_dims(shape, whole))
        # Scalars beside the arrays are initial values of reductions.
        maps = [
            dims if len(aval.shape) == len(shape) else dims_like(aval.shape)
            for aval in (*eqn.in_avals, *eqn.out_avals)
        ]
        count = len(eqn.in_avals)
        return LoopRule(
            loops.done(),
            tuple(maps[:count]),
            tuple(maps[count:]),
            linear=((0,),) if linear else (),
            whole=f"{eqn.name} works along dims {tuple(whole)}",
        )

    return rule


def _param(name: str) -> _DimsOf:
    return lambda eqn: (eqn.params[name],)


def fft_dims(eqn: Equation) -> tuple[int, ...]:
    """Return the last dims, as many as there are lengths."""
    rank = len(eqn.in_avals[0].shape)
    return tuple(range(rank - len(eqn.params["fft_lengths"]), rank))


def local_fft(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the transform, on CPUs its result in the order of its dims.

    XLA:CPU lets the users of a result choose its order and then refuses any but this one, and
    XLA:TPU takes no order of complex numbers.
    Source: RET_CHECK in fft_thunk.cc of jaxlib 0.10.2, seen where a transposed result is resharded;
    libtpu 0.0.42.1.
    """
    (result,) = rebind(eqn, operands)
    if shards.is_planned:
        return [result]
    order = Layout(tuple(range(result.ndim)))
    return [
        lax.platform_dependent(
            result, cpu=lambda x: with_layout_constraint(x, order), default=lambda x: x
        )
    ]


def _sort_flop(eqn: Equation) -> float:
    elements = sum(math.prod(aval.shape) for aval in eqn.in_avals)
    length = max(eqn.in_avals[0].shape[eqn.params["dimension"]], 2)
    return float(elements * math.log2(length))


def _fft_flop(eqn: Equation) -> float:
    # 5 N log2 N, the usual count for a complex transform of length N (Cooley and Tukey).
    elements = math.prod(eqn.out_avals[0].shape)
    return 5.0 * elements * math.log2(max(math.prod(eqn.params["fft_lengths"]), 2))


_CUMULATIVE = ("cumprod", "cummax", "cummin", "cumlogsumexp")

TABLE: Mapping[str, PrimitiveRule] = {
    "cumsum": PrimitiveRule(_rule(_param("axis"), linear=True)),
    **{name: PrimitiveRule(_rule(_param("axis"))) for name in _CUMULATIVE},
    "sort": PrimitiveRule(_rule(_param("dimension")), flop=_sort_flop),
    "top_k": PrimitiveRule(_rule(_param("axis"))),
    "approx_top_k": PrimitiveRule(_rule(_param("reduction_dimension"))),
    "fft": PrimitiveRule(_rule(fft_dims, linear=True), local_fft, _fft_flop),
}
