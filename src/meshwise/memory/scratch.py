"""What an operator holds besides operands and results while it runs on one device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.loops import Strategy
from meshwise.graph.sends import half_bytes, ring_axes, ring_bytes, takes_halves
from meshwise.plan.counts.flop import strategy_parts

# The block that a device computes with, and the one that comes meanwhile; of results the latter
# only.  Source: temporaries of attention, compiled by XLA:CPU and XLA:GPU (JAX 0.10.2).
_BLOCKS = 2


def scratch_bytes(
    op: Operator, strategy: Strategy, sizes: tuple[int, ...], tensors: Sequence[Tensor]
) -> int:
    """Return the bytes that an operator holds besides operands and results.

    Where blocks go round, a device holds the scratch for one block at a time, and the blocks.

    Args:
        op: The operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        tensors: The tensors of its graph.
    """
    if op.scratch is None:
        return 0
    share, num_bytes, rows = op.scratch.share, 0, 1.0
    if axes := ring_axes(op.rule, strategy, sizes):
        share = min(share, 1 / math.prod(sizes[a] for a in axes))
        operands = [tensors[t] for t in op.inputs]
        results = [tensors[t] for t in op.outputs]
        of_operands, of_results = ring_bytes(op.rule, strategy, sizes, operands, results)
        num_bytes = _BLOCKS * of_operands + of_results
        if takes_halves(op.rule, strategy, sizes):
            # Scores of half of the rows with half of a block; halves of rows lie beside rows.
            share, rows = min(share, 1 / (2 * math.prod(sizes[a] for a in axes))), 0.5
            num_bytes += _bytes_of_rows(op, strategy, sizes, operands, results)
    own_bytes = rows * op.scratch.num_bytes / strategy_parts(op, strategy, sizes)
    return num_bytes + math.ceil(own_bytes * share)


def _bytes_of_rows(
    op: Operator,
    strategy: Strategy,
    sizes: tuple[int, ...],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> int:
    """Return the bytes of both halves of what has rows and does not go round."""
    ring = op.rule.ring
    assert ring is not None
    stays = [
        *(k not in ring.operands for k in ring.halved_operands),
        *(k not in ring.results for k in ring.halved_results),
    ]
    halves = half_bytes(op.rule, strategy, sizes, operands, results)
    return 2 * sum(half for half, is_here in zip(halves, stays, strict=True) if is_here)
