"""Rows that go to the devices of their groups, in rounds: how many in each, and what is sent.

If all pairs of devices have the same number of rows, `ROUNDS` rounds send all rows.  Where one pair
has more, more rounds follow for all.  A round is small, since room for it is needed
twice on each side, and what the fullest pair has decides how many rows are sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.graph.graph import Tensor
from meshwise.graph.loops import (
    LoopRule,
    Strategy,
    axes_along,
    axes_of_loop,
    block_shapes,
)

# Rounds that send all rows if all pairs of devices have the same number of rows.
ROUNDS = 4
# Bytes of the number of rows of one group.
COUNT_BYTES = 4
# Bytes of a number in sums, at least.
SUM_BYTES = 4


def rows_of_pair(num_rows: int, count: int) -> int:
    """Return how many rows a device sends to each device in a round.

    Args:
        num_rows: Rows of the device.
        count: Devices among which the groups are split.
    """
    return -(-num_rows // (ROUNDS * count))


def dispatch_axes(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the mesh axes along which rows go to the devices of their groups.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.

    Returns:
        Axes in mesh order; none if all rows stay where they are.
    """
    if rule.dispatch is None:
        return ()
    return tuple(a for a in axes_of_loop(strategy, rule.dispatch.loop) if sizes[a] > 1)


def own_groups(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> int:
    """Return the number of groups whose matrices a device has.

    Args:
        rule: Loops with a dispatch.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
    """
    assert rule.dispatch is not None
    groups = rule.dispatch.groups
    return rule.loops[groups].size // math.prod(
        sizes[a] for a in axes_along(rule, strategy, groups)
    )


def groups_of_round(own: int) -> int:
    """Return about how many groups have rows among those that come to a device in one round.

    Each device sends its rows group by group.

    Args:
        own: Groups of the device.
    """
    return -(-own // ROUNDS)


class Round(NamedTuple):
    """What one round sends.

    Attributes:
        axes: The mesh axes along which rows go.
        num_devices: Devices along them.
        num_rows: Rows that come to a device, at most.
        operands: Bytes that a device sends of each operand that has rows.
        results: Bytes that it gets back of each result.
    """

    axes: tuple[int, ...]
    num_devices: int
    num_rows: int
    operands: tuple[int, ...]
    results: tuple[int, ...]


def round_of(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> Round | None:
    """Return what one round sends; None if no rows go anywhere.

    Args:
        rule: The loops of the operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: The whole operands.
        results: The whole results.
    """
    axes, dispatch = dispatch_axes(rule, strategy, sizes), rule.dispatch
    if dispatch is None or not axes:
        return None
    shapes = ([tensor.shape for tensor in tensors] for tensors in (operands, results))
    of_operands, of_results = block_shapes(rule, strategy, sizes, *shapes)
    count = math.prod(sizes[a] for a in axes)
    moving = [
        *((operands[k], of_operands[k]) for k in dispatch.operands),
        *((results[k], of_results[k]) for k in dispatch.results),
    ]
    sent: list[int] = []
    coming = 0
    for (tensor, shape), dims in zip(moving, dispatch.dims, strict=True):
        num_rows = math.prod(shape[d] for d in dims)
        of_row = math.prod(shape) // max(1, num_rows) * tensor.itemsize
        coming = count * rows_of_pair(num_rows, count)
        sent.append(coming * of_row)
    first = len(dispatch.operands)
    return Round(axes, count, coming, tuple(sent[:first]), tuple(sent[first:]))
