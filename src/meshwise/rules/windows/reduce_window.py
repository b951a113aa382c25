"""Pooling: windows that move over dims, reduced, and the gradients of their maxima.

A dim along which a window is one element in its own place is a plain loop.  Along the others the
windows are cut in blocks that overlap (`rules.windows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.graph.sent import Halo
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.windows.window import (
    Windows,
    blocks_of_selections,
    blocks_of_windows,
    without_ends,
)

_SCATTER = "select_and_scatter_add"
_MONOIDS = {"reduce_window_sum": SUM, "reduce_window_max": "max", "reduce_window_min": "min"}
# Linear in the first operand: the cotangents or tangents that a maximum selects.
_LINEAR = ("reduce_window_sum", _SCATTER, "select_and_gather_add")


def _windows(eqn: Equation, dim: int) -> Windows:
    params = eqn.params
    # The gradient has the windows of the maximum: its result is what they read.
    long, short = eqn.in_avals[0].shape, eqn.out_avals[0].shape
    if eqn.name == _SCATTER:
        long, short = short, long

    def setting(name: str) -> int:
        values = params.get(name)
        return values[dim] if values else 1

    return Windows(
        size=long[dim],
        base=setting("base_dilation"),
        low=params["padding"][dim][0] if params["padding"] else 0,
        count=short[dim],
        stride=setting("window_strides"),
        length=params["window_dimensions"][dim],
        dilation=setting("window_dilation"),
    )


def _is_plain(eqn: Equation, windows: Windows, dim: int) -> bool:
    """Return whether each window is one element in its own place."""
    padding = eqn.params["padding"][dim] if eqn.params["padding"] else (0, 0)
    return (windows.length, windows.stride, windows.base) == (1, 1, 1) and not any(padding)


def _edges(eqn: Equation, dim: int) -> tuple[tuple[int, int], ...] | None:
    """Return for each operand what a block needs of its neighbours; None if not aligned."""
    windows = _windows(eqn, dim)
    if eqn.name == _SCATTER:
        found = blocks_of_selections(windows)
        return None if found is None else (found.windows, found.elements)
    blocks = blocks_of_windows(windows)
    return None if blocks is None else ((blocks.low, blocks.high),) * len(eqn.in_avals)


def _monoids(eqn: Equation) -> tuple[str, ...]:
    """Return for each operand the reduction whose neutral element lies beyond its ends."""
    if eqn.name in _MONOIDS:
        return (_MONOIDS[eqn.name],)
    return (SUM, "max" if eqn.params["select_prim"].name == "ge" else "min")


def window_rule(eqn: Equation) -> LoopRule:
    """Return one loop a dim, over the windows."""
    loops = LoopList()
    dims: list[tuple[int, ...]] = []
    halos: list[Halo] = []
    whole: list[int] = []
    for dim in range(len(eqn.in_avals[0].shape)):
        windows = _windows(eqn, dim)
        if _is_plain(eqn, windows, dim):
            dims.append(loops.add(windows.size))
            continue
        edges = _edges(eqn, dim)
        loop = loops.add(windows.count, block=True) if edges is not None else ()
        dims.append(loop)
        if edges is None:
            whole.append(dim)
        elif loop:
            halos += [
                Halo(k, dim, eqn.in_avals[k].shape[dim], low, high, monoid)
                for k, ((low, high), monoid) in enumerate(zip(edges, _monoids(eqn), strict=True))
            ]
    follows = tuple(dims)
    return LoopRule(
        loops.done(),
        (follows,) * len(eqn.in_avals),
        (follows,) * len(eqn.out_avals),
        linear=((0,),) if eqn.name in _LINEAR else (),
        whole=f"windows along dims {tuple(whole)} are not aligned with tiles" if whole else "",
        halos=tuple(halos),
    )


def _cut_dims(shards: Shards) -> list[int]:
    """Return dims whose windows are cut in blocks."""
    follows = shards.rule.operands[0]
    dims = dict.fromkeys(halo.dim for halo in shards.rule.halos)
    return [dim for dim in dims if shards.parts(follows[dim][0]) > 1]


def _paddings(eqn: Equation) -> list[tuple[int, int]]:
    return list(eqn.params["padding"] or ((0, 0),) * len(eqn.in_avals[0].shape))


def local_window(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the windows of the blocks, with the padding of the blocks."""
    padding, local = _paddings(eqn), list(operands)
    for dim in _cut_dims(shards):
        blocks = blocks_of_windows(_windows(eqn, dim))
        assert blocks is not None
        padding[dim] = blocks.padding
        local = [without_ends(value, dim, blocks.cut) for value in local]
    return rebind(eqn, local, padding=tuple(padding))


def local_selection(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Return all windows that touch the blocks; what they give to the neighbours is cut off.

    Windows beyond the ends have a cotangent of zero.
    """
    padding, dims = _paddings(eqn), _cut_dims(shards)
    for dim in dims:
        padding[dim] = (0, 0)
    (out,) = rebind(eqn, operands, padding=tuple(padding))
    for dim in dims:
        found = blocks_of_selections(_windows(eqn, dim))
        assert found is not None
        out = without_ends(out, dim, found.elements)
    return [out]


def window_flop(eqn: Equation) -> float:
    """Return one operation for each element of each window."""
    return float(math.prod(eqn.out_avals[0].shape) * math.prod(eqn.params["window_dimensions"]))


TABLE: Mapping[str, PrimitiveRule] = {
    **{
        name: PrimitiveRule(window_rule, local_window, window_flop)
        for name in (*_MONOIDS, "select_and_gather_add")
    },
    _SCATTER: PrimitiveRule(window_rule, local_selection, window_flop),
}
