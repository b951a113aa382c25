"""Edges that neighbours exchange before an operator runs on overlapping blocks.

Two blocks of one dim are neighbours if their ranks along the axes of the loop differ by one.
Each edge is one permute: all devices send the same number of elements, those at the end of the
dim send nothing.  Edges of a second dim are taken from the block that has the first ones, so that
corners come along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwise.graph.layout import local_shape
from meshwise.graph.loops import (
    LoopRule,
    Strategy,
    axes_of_loop,
    halo_loop,
    operand_layouts,
)
from meshwise.graph.sent import Halo


class HaloEdge(NamedTuple):
    """One permute of an operator.

    Attributes:
        halo: What it is for.
        axes: Mesh axes of the group, in mesh order; none of size 1.
        group_size: Devices in one group.
        width: Elements along the dim.
        from_before: Whether it comes from the block before this one.
    """

    halo: Halo
    axes: tuple[int, ...]
    group_size: int
    width: int
    from_before: bool


def edges(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> Iterator[HaloEdge]:
    """Yield the permutes of an operator under a strategy, in the order in which they run.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    for halo in rule.halos:
        axes = tuple(a for a in axes_of_loop(strategy, halo_loop(rule, halo)) if sizes[a] > 1)
        if axes:
            count = math.prod(sizes[a] for a in axes)
            for width, from_before in ((halo.low, True), (halo.high, False)):
                if width:
                    yield HaloEdge(halo, axes, count, width, from_before)


def extended_shape(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operand: int,
    shape: Sequence[int],
) -> tuple[int, ...]:
    """Return the local shape of an operand with all its edges around.

    Args:
        rule: The loops of the operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operand: Position of the operand.
        shape: Whole shape of the operand.
    """
    layouts = operand_layouts(rule, strategy, sizes)
    assert layouts is not None
    local = list(local_shape(shape, layouts[operand], sizes))
    for edge in edges(rule, strategy, sizes):
        if edge.halo.operand == operand:
            local[edge.halo.dim] += edge.width
    return tuple(local)


def edge_elements(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    shapes: Sequence[Sequence[int]],
) -> tuple[tuple[HaloEdge, int], ...]:
    """Each permute with the elements that one device sends.

    Args:
        rule: The loops.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        shapes: Whole shapes of the operands.
    """
    found = tuple(edges(rule, strategy, sizes))
    if not found:
        return ()
    layouts = operand_layouts(rule, strategy, sizes)
    assert layouts is not None
    blocks = [list(local_shape(s, w, sizes)) for s, w in zip(shapes, layouts, strict=True)]
    out: list[tuple[HaloEdge, int]] = []
    for i, edge in enumerate(found):
        block = blocks[edge.halo.operand]
        others = math.prod(size for d, size in enumerate(block) if d != edge.halo.dim)
        out.append((edge, edge.width * others))
        if i + 1 == len(found) or found[i + 1].halo != edge.halo:
            block[edge.halo.dim] += edge.halo.low + edge.halo.high
    return tuple(out)
