"""What an operator sends while it runs: edges of blocks, and blocks that go round a ring.

All else that devices send is a change of layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.graph.graph import Tensor
from meshwise.graph.halo import edge_elements
from meshwise.graph.layout import local_shape
from meshwise.graph.loops import (
    LoopRule,
    Strategy,
    axes_of_loop,
    operand_layouts,
    result_layouts,
)


class Send(NamedTuple):
    """One permute, or several equal ones.

    Attributes:
        axes: Mesh axes of the group, in mesh order; none of size 1.
        group_size: Devices in one group.
        num_bytes: B of docs/facts.md section 1: what all devices of a group send together.
        times: How often, while the operator runs once.
    """

    axes: tuple[int, ...]
    group_size: int
    num_bytes: int
    times: int


def ring_axes(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the mesh axes around which blocks go; none if the operator has no ring.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    if rule.ring is None:
        return ()
    return tuple(a for a in axes_of_loop(strategy, rule.ring.loop) if sizes[a] > 1)


def ring_bytes(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> tuple[int, int]:
    """Return the bytes of the block of one device: of operands that go round, and of results.

    Args:
        rule: Loops with a ring.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: The whole operands.
        results: The whole results.
    """
    ring = rule.ring
    layouts = operand_layouts(rule, strategy, sizes), result_layouts(rule, strategy, sizes)
    assert ring is not None
    assert layouts[0] is not None
    assert layouts[1] is not None
    of_operands, of_results = (
        sum(
            math.prod(local_shape(tensors[k].shape, found[k], sizes)) * tensors[k].itemsize
            for k in places
        )
        for places, tensors, found in (
            (ring.operands, operands, layouts[0]),
            (ring.results, results, layouts[1]),
        )
    )
    return of_operands, of_results


def sends(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> tuple[Send, ...]:
    """Return what an operator sends under a strategy.

    What goes round is sent as one block: n devices send operands n - 1 times, and results, which
    come home, n times.

    Args:
        rule: The loops of the operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: The whole operands.
        results: The whole results.
    """
    shapes = [tensor.shape for tensor in operands] if rule.halos else ()
    found = [
        Send(
            edge.axes,
            edge.group_size,
            elements * operands[edge.halo.operand].itemsize * edge.group_size,
            1,
        )
        for edge, elements in edge_elements(rule, strategy, sizes, shapes)
    ]
    axes = ring_axes(rule, strategy, sizes)
    if axes:
        count = math.prod(sizes[a] for a in axes)
        blocks = ring_bytes(rule, strategy, sizes, operands, results)
        for num_bytes, times in zip(blocks, (count - 1, count), strict=True):
            if num_bytes:
                found.append(Send(axes, count, num_bytes * count, times))
    return tuple(found)
