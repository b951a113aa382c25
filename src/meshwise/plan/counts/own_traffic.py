"""Bytes that an operator writes and reads for itself, beside operands and results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.loops import Strategy, loop_parts
from meshwise.graph.sends import ring_axes, ring_bytes
from meshwise.plan.counts.flop import device_share


def own_traffic_bytes(
    op: Operator,
    strategy: Strategy,
    sizes: tuple[int, ...],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> float:
    """Return the bytes that one device writes and reads for itself while an operator runs once.

    Blocks of operands that come by are read; shares are added to blocks of results.

    Args:
        op: The operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: The whole operands.
        results: The whole results.
    """
    if op.scratch is None:
        return 0.0
    num_bytes = op.scratch.traffic_bytes * device_share(op, strategy, sizes)
    parts = math.prod(loop_parts(strategy, loop, sizes) for loop in op.scratch.traffic_loops)
    num_bytes += op.scratch.unsplit_traffic_bytes / parts
    if axes := ring_axes(op.rule, strategy, sizes):
        of_operands, of_results = ring_bytes(op.rule, strategy, sizes, operands, results)
        turns = math.prod(sizes[a] for a in axes) - 1
        num_bytes += turns * (of_operands + 2 * of_results)
    return num_bytes
