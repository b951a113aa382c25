"""Convolutions: groups, batch and output channels are parallel, input channels are a sum.

Channels of a grouped convolution are (group, channel in the group), major to minor; so are the
rows of a batch-grouped one.  Spatial dims stay whole: splitting them needs an exchange of edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwise.graph.layout import SUM
from meshwise.graph.loops import DimMap, LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind


def _groups(eqn: Equation) -> int:
    """Feature groups or batch groups; XLA allows one of them only."""
    return max(eqn.params["feature_group_count"], eqn.params["batch_group_count"])


def conv_rule(eqn: Equation) -> LoopRule:
    """Loops in the order: group, batch, output channels, input channels."""
    numbers = eqn.params["dimension_numbers"]
    rhs, out = eqn.in_avals[1].shape, eqn.out_avals[0].shape
    groups = _groups(eqn)
    loops = LoopList()
    group = loops.add(groups)
    batch = loops.add(out[numbers.out_spec[0]])
    out_channels = loops.add(rhs[numbers.rhs_spec[0]] // groups)
    in_channels = loops.add(rhs[numbers.rhs_spec[1]], SUM)
    by_feature = eqn.params["feature_group_count"] > 1

    def place(spec: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> DimMap:
        dims: list[tuple[int, ...]] = [()] * len(spec)
        dims[spec[0]], dims[spec[1]] = first, second
        return tuple(dims)

    rows = batch if by_feature else (*group, *batch)
    features = (*group, *in_channels) if by_feature else in_channels
    return LoopRule(
        loops.done(),
        (
            place(numbers.lhs_spec, rows, features),
            place(numbers.rhs_spec, (*group, *out_channels), in_channels),
        ),
        (place(numbers.out_spec, batch, (*group, *out_channels)),),
        linear=((0,), (1,)),
        whole="spatial dims",
    )


def local_conv(eqn: Equation, shards: Shards, operands: Sequence[Any]) -> list[Any]:
    """The convolution itself, with the groups that are here."""
    if _groups(eqn) == 1:
        return rebind(eqn, operands)
    parts = shards.parts(0)
    counts = {
        name: max(1, eqn.params[name] // parts)
        for name in ("feature_group_count", "batch_group_count")
    }
    return rebind(eqn, operands, **counts)


def conv_flop(eqn: Equation) -> float:
    """2 x result elements x kernel elements that one of them reads.

    Padding counts as data, the holes of a dilated input do not: a strided convolution and its
    gradients count the same.
    """
    kernel = eqn.in_avals[1].shape
    reads = math.prod(kernel) // max(1, kernel[eqn.params["dimension_numbers"].rhs_spec[0]])
    holes = math.prod(eqn.params["lhs_dilation"])
    return 2.0 * math.prod(eqn.out_avals[0].shape) * reads / holes


TABLE: Mapping[str, PrimitiveRule] = {
    "conv_general_dilated": PrimitiveRule(conv_rule, local_conv, conv_flop, heavy=True)
}
