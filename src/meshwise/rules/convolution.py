"""Convolutions: batch and output channels are parallel, input channels are a sum.

Spatial dims stay whole: splitting them needs an exchange of edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwise.graph.layout import SUM
from meshwise.graph.loops import DimMap, LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule


def conv_rule(eqn: Equation) -> LoopRule:
    """Loops in the order: batch, output channels, input channels; grouped: batch only."""
    numbers = eqn.params["dimension_numbers"]
    lhs, rhs = eqn.in_avals[0].shape, eqn.in_avals[1].shape
    feature_groups = eqn.params["feature_group_count"]
    batch_groups = eqn.params["batch_group_count"]
    loops = LoopList()
    grouped = feature_groups > 1 or batch_groups > 1
    # Groups of the batch take part in the channels of the result.
    batch = loops.add(lhs[numbers.lhs_spec[0]]) if batch_groups == 1 else ()
    out_channels = () if grouped else loops.add(rhs[numbers.rhs_spec[0]])
    in_channels = () if grouped else loops.add(lhs[numbers.lhs_spec[1]], SUM)

    def place(spec: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> DimMap:
        dims: list[tuple[int, ...]] = [()] * len(spec)
        dims[spec[0]], dims[spec[1]] = first, second
        return tuple(dims)

    return LoopRule(
        loops.done(),
        (
            place(numbers.lhs_spec, batch, in_channels),
            place(numbers.rhs_spec, out_channels, in_channels),
        ),
        (place(numbers.out_spec, batch, out_channels),),
        linear=((0,), (1,)),
        whole="channels of a grouped convolution" if grouped else "spatial dims",
    )


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
    "conv_general_dilated": PrimitiveRule(conv_rule, flop=conv_flop, heavy=True)
}
