"""What an operator holds besides operands and results while it runs on one device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.graph.dispatch import groups_of_round, own_groups, round_of
from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.loops import Strategy, loop_parts
from meshwise.graph.sends import (
    half_bytes,
    num_own_query_blocks,
    ring_axes,
    ring_bytes,
    takes_halves,
)
from meshwise.plan.counts.flop import strategy_parts

# Where blocks go round: the block that a device computes with, and the one that comes meanwhile; of
# results the latter only.  Elsewhere there is one of each: operands, or results, side by side.
# Source: temporaries of attention, compiled by XLA:CPU and XLA:GPU (JAX 0.10.2).
_BLOCKS_OF_RING = 2


def scratch_bytes(
    op: Operator, strategy: Strategy, sizes: tuple[int, ...], tensors: Sequence[Tensor]
) -> int:
    """Return the bytes that an operator holds besides operands and results.

    A device holds the scores of some of its rows with one chunk of keys at a time, and its keys
    and values side by side.

    Args:
        op: The operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        tensors: The tensors of its graph.
    """
    if op.scratch is None:
        return 0
    loops = op.scratch.loops
    parts = (
        strategy_parts(op, strategy, sizes)
        if loops is None
        else math.prod(loop_parts(strategy, loop, sizes) for loop in loops)
    )
    share, rows = op.scratch.share, 1.0
    num_bytes = op.scratch.whole_bytes / parts
    if op.scratch.matrix_bytes:
        return math.ceil(num_bytes + _bytes_of_groups(op, strategy, sizes, tensors, parts))
    if op.rule.ring is not None:
        axes = ring_axes(op.rule, strategy, sizes)
        operands = [tensors[t] for t in op.inputs]
        results = [tensors[t] for t in op.outputs]
        of_operands, of_results = ring_bytes(op.rule, strategy, sizes, operands, results)
        num_bytes += of_operands * (_BLOCKS_OF_RING if axes else 1) + of_results
        share = min(share, 1 / math.prod(sizes[a] for a in axes))
        if takes_halves(op.rule, strategy, sizes):
            # Scores of half of the rows with half of a block; halves of rows lie beside rows.
            share, rows = min(share, 1 / (2 * math.prod(sizes[a] for a in axes))), 0.5
            num_bytes += _bytes_of_rows(op, strategy, sizes, operands, results)
        else:
            rows = 1 / num_own_query_blocks(op.rule, strategy, sizes)
    return math.ceil(num_bytes + rows * share * op.scratch.num_bytes / parts)


def _bytes_of_groups(
    op: Operator,
    strategy: Strategy,
    sizes: tuple[int, ...],
    tensors: Sequence[Tensor],
    parts: int,
) -> float:
    """Return the bytes of a matrix and a strip, and of the rows of one round.

    While rows are sent there are two copies of them; afterwards rows and results lie side by side.
    The larger of the two counts.  Sums of short floats over all rounds lie beside the result; then
    only the latter is counted, as the copies lie where the result will.

    Source: temporaries of ragged products, compiled by XLA:GPU (JAX 0.10.2).
    """
    scratch, dispatch = op.scratch, op.rule.dispatch
    assert scratch is not None
    strip, matrix = scratch.num_bytes / parts, scratch.matrix_bytes / parts
    if dispatch is None:
        return strip + matrix
    own = own_groups(op.rule, strategy, sizes)
    # The only matrix is read where it lies.
    copied = matrix if own > 1 else 0.0
    operands, results = ([tensors[t] for t in side] for side in (op.inputs, op.outputs))
    sent = round_of(op.rule, strategy, sizes, operands, results)
    if sent is None:
        return strip + copied
    # A strip has half of the rows of a group.
    strip = min(strip, scratch.row_bytes / parts * sent.num_rows / (2 * groups_of_round(own)))
    held = strip + copied + sum(sent.operands) + sum(sent.results)
    if scratch.sum_bytes:
        return held + own * scratch.sum_bytes / parts
    return max(held, 2 * max(sent.operands))


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
