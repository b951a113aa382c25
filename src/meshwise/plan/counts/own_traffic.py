"""Bytes that an operator writes and reads for itself, beside operands and results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.graph.dispatch import ROUNDS, round_of
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

    Blocks of operands that come by are read; shares are added to blocks of results.  Rows that go
    to their groups are copied before they are sent, and results after they came back.

    Args:
        op: The operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: The whole operands.
        results: The whole results.
    """
    if op.scratch is None:
        return 0.0
    share = device_share(op, strategy, sizes)
    parts = math.prod(loop_parts(strategy, loop, sizes) for loop in op.scratch.traffic_loops)
    num_bytes = op.scratch.traffic_bytes * share + op.scratch.unsplit_traffic_bytes / parts
    num_bytes += max(
        op.scratch.strip_traffic_bytes * share, op.scratch.least_strip_traffic_bytes / parts
    )
    if axes := ring_axes(op.rule, strategy, sizes):
        of_operands, of_results = ring_bytes(op.rule, strategy, sizes, operands, results)
        turns = math.prod(sizes[a] for a in axes) - 1
        num_bytes += turns * (of_operands + 2 * of_results)
    dispatch = op.rule.dispatch
    sent = round_of(op.rule, strategy, sizes, operands, results)
    if dispatch is not None and sent is not None:
        num_bytes += ROUNDS * 2 * (sum(sent.operands) + sum(sent.results))
        widths = math.prod(loop_parts(strategy, loop, sizes) for loop in op.scratch.loops or ())
        # A group that goes on in the next round: 2 for the copy of its matrix, 1 for half a strip.
        num_bytes += (ROUNDS - 1) * 3 * op.scratch.matrix_bytes / widths
    return num_bytes
