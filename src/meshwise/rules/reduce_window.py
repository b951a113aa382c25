"""Pooling: windows that move over dims, reduced, and the gradients of their maxima.

A dim along which a window is one element in its own place is a plain loop.  Along the others the
windows are cut in blocks that overlap (`rules.windows`); the gradient of a maximum only where the
windows of a block lie in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwise.graph.layout import SUM
from meshwise.graph.loops import Halo, LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.windows import Blocks, Windows, blocks_of_windows, without_ends

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
    """Whether each window is one element in its own place."""
    padding = eqn.params["padding"][dim] if eqn.params["padding"] else (0, 0)
    return (windows.length, windows.stride, windows.base) == (1, 1, 1) and not any(padding)


def _blocks(eqn: Equation, dim: int) -> Blocks | None:
    blocks = blocks_of_windows(_windows(eqn, dim))
    if blocks is not None and eqn.name == _SCATTER:
        exact = not (blocks.low or blocks.high or any(blocks.cut) or any(blocks.padding))
        return blocks if exact else None
    return blocks


def _monoids(eqn: Equation) -> tuple[str, ...]:
    """For each operand the reduction whose neutral element lies beyond its ends."""
    if eqn.name in _MONOIDS:
        return (_MONOIDS[eqn.name],)
    return (SUM, "max" if eqn.params["select_prim"].name == "ge" else "min")


def window_rule(eqn: Equation) -> LoopRule:
    """One loop a dim, over the windows."""
    loops = LoopList()
    dims: list[tuple[int, ...]] = []
    halos: list[Halo] = []
    whole: list[int] = []
    for dim in range(len(eqn.in_avals[0].shape)):
        windows = _windows(eqn, dim)
        if _is_plain(eqn, windows, dim):
            dims.append(loops.add(windows.size))
            continue
        blocks = _blocks(eqn, dim)
        loop = loops.add(windows.count, block=True) if blocks is not None else ()
        dims.append(loop)
        if blocks is None:
            whole.append(dim)
        elif loop and eqn.name == _SCATTER:
            # Cotangents and operand are cut alike; only the sizes differ.
            halos.append(Halo(1, dim, windows.size, 0, 0))
        elif loop:
            halos += [
                Halo(operand, dim, windows.size, blocks.low, blocks.high, monoid)
                for operand, monoid in enumerate(_monoids(eqn))
            ]
    follows = tuple(dims)
    return LoopRule(
        loops.done(),
        (follows,) * len(eqn.in_avals),
        (follows,) * len(eqn.out_avals),
        linear=((0,),) if eqn.name in _LINEAR else (),
        whole=f"windows along dims {tuple(whole)} are not aligned with blocks" if whole else "",
        halos=tuple(halos),
    )


def local_window(eqn: Equation, shards: Shards, operands: Sequence[Any]) -> list[Any]:
    """The windows of the blocks, with the padding of the blocks."""
    blocks_of: dict[int, Blocks] = {}
    for halo in shards.rule.halos:
        (loop,) = shards.rule.operands[halo.operand][halo.dim]
        if shards.parts(loop) > 1:
            found = _blocks(eqn, halo.dim)
            assert found is not None
            blocks_of[halo.dim] = found
    if not blocks_of:
        return rebind(eqn, operands)
    padding = list(eqn.params["padding"] or ((0, 0),) * len(eqn.in_avals[0].shape))
    local = list(operands)
    for dim, blocks in blocks_of.items():
        padding[dim] = blocks.padding
        local = [without_ends(value, dim, blocks.cut) for value in local]
    return rebind(eqn, local, padding=tuple(padding))


def window_flop(eqn: Equation) -> float:
    """One operation for each element of each window."""
    return float(math.prod(eqn.out_avals[0].shape) * math.prod(eqn.params["window_dimensions"]))


TABLE: Mapping[str, PrimitiveRule] = {
    name: PrimitiveRule(window_rule, local_window, window_flop)
    for name in (*_MONOIDS, _SCATTER, "select_and_gather_add")
}
