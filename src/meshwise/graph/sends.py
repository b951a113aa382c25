"""What an operator sends while it runs: edges, blocks of a ring, rows that go to their groups.

All else that devices send is a change of layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.cluster.collectives import ALL_GATHER, ALL_TO_ALL, PERMUTE
from meshwise.graph.chunks import num_query_blocks
from meshwise.graph.dispatch import COUNT_BYTES, ROUNDS, dispatch_axes, round_of
from meshwise.graph.graph import Tensor
from meshwise.graph.halo import edge_elements
from meshwise.graph.loops import (
    LoopRule,
    Strategy,
    axes_of_loop,
    block_shapes,
    loop_parts,
)


class Send(NamedTuple):
    """One collective, or several equal ones.

    Attributes:
        kind: `permute`, `all-to-all` or `all-gather`.
        axes: Mesh axes of the group, in mesh order; none of size 1.
        group_size: Devices in one group.
        num_bytes: B of docs/facts.md section 1: what all devices of a group send together.
        times: How often, while the operator runs once.
        in_turns: Whether it goes round while the operator computes.
    """

    kind: str
    axes: tuple[int, ...]
    group_size: int
    num_bytes: int
    times: int
    in_turns: bool = False


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


def waits_for_all(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> bool:
    """Return whether an operator sends more than edges: it is then in order with all others.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    return bool(ring_axes(rule, strategy, sizes) or dispatch_axes(rule, strategy, sizes))


def has_halves(rule: LoopRule, count: int, further: int) -> bool:
    """Return whether a ring of so many devices takes halves of blocks.

    Args:
        rule: Loops with a ring.
        count: Devices of the ring.
        further: Parts into which the second loop splits the rows of one.
    """
    ring = rule.ring
    if ring is None or not ring.halved_operands or count == 1 or further > 1:
        return False
    return not (ring.size % (2 * count) or rule.loops[ring.loop].size % (2 * count))


def takes_halves(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> bool:
    """Return whether devices of a ring take halves of blocks, so that none waits for the others.

    Rows that are split by a second loop too, or blocks that have no halves, stay as they are: then
    each device computes with all blocks.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    if rule.ring is None:
        return False
    count, further = (loop_parts(strategy, x, sizes) for x in (rule.ring.loop, rule.ring.rows))
    return has_halves(rule, count, further)


def num_own_query_blocks(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> int:
    """Return the number of query blocks of a device, each of which leaves out the keys after it.

    It is 1 where it computes with all of its own keys: without a causal mask, where rows are split
    and keys are not, in rings without halves, and where all keys are one chunk.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    ring = rule.ring
    if ring is None or not ring.halved_operands:
        return 1
    count, further = (loop_parts(strategy, x, sizes) for x in (ring.loop, ring.rows))
    if has_halves(rule, count, further):
        return 2 * num_query_blocks(ring.size // (2 * count), ring.chunk)
    return num_query_blocks(ring.size, ring.chunk) if count * further == 1 else 1


def ring_share(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> float:
    """Return which share of its part of the work a device does: hidden scores may be left out.

    Of m² pairs of query blocks with its own keys it computes m (m + 1) / 2.  In a ring of n devices
    it has 4 n pairs of halves.  Four are of its own rows and keys; of the four in each of the n - 1
    turns it computes two.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    blocks = num_own_query_blocks(rule, strategy, sizes)
    if blocks == 1:
        return 1.0
    count = math.prod(sizes[a] for a in ring_axes(rule, strategy, sizes))
    return (count - 1 + (blocks + 1) / blocks) / (2 * count)


def half_bytes(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> list[int]:
    """Return the bytes of half of the block of one device, of each operand and result with halves.

    Args:
        rule: Loops with a ring.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: The whole operands.
        results: The whole results.
    """
    ring = rule.ring
    assert ring is not None
    of_operands, of_results = _block_bytes(rule, strategy, sizes, operands, results)
    return [
        *(of_operands[k] // 2 for k in ring.halved_operands),
        *(of_results[k] // 2 for k in ring.halved_results),
    ]


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
    assert ring is not None
    of_operands, of_results = _block_bytes(rule, strategy, sizes, operands, results)
    return sum(of_operands[k] for k in ring.operands), sum(of_results[k] for k in ring.results)


def _block_bytes(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> tuple[list[int], list[int]]:
    """Return the bytes of the block of one device, of each operand and of each result."""
    shapes = ([tensor.shape for tensor in tensors] for tensors in (operands, results))
    blocks = block_shapes(rule, strategy, sizes, *shapes)
    of_operands, of_results = (
        [math.prod(shape) * x.itemsize for x, shape in zip(tensors, found, strict=True)]
        for tensors, found in zip((operands, results), blocks, strict=True)
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
    come home, n times.  Halves are exchanged before, and back afterwards.  Rows go to their groups
    in the rounds that they take if all pairs of devices have as many.

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
            PERMUTE,
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
                found.append(Send(PERMUTE, axes, count, num_bytes * count, times, in_turns=True))
        if takes_halves(rule, strategy, sizes):
            halves = half_bytes(rule, strategy, sizes, operands, results)
            # Of two devices each keeps one of its halves.
            times = min(count - 1, 2)
            found += [Send(PERMUTE, axes, count, num_bytes * count, times) for num_bytes in halves]
    return (*found, *_dispatched(rule, strategy, sizes, operands, results))


def _dispatched(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
) -> list[Send]:
    """Return the sends of rows that go to their groups: how many rows, the rows, their results."""
    sent = round_of(rule, strategy, sizes, operands, results)
    if sent is None or rule.dispatch is None:
        return []
    count, axes = sent.num_devices, sent.axes
    counts = COUNT_BYTES * rule.loops[rule.dispatch.groups].size * count
    return [
        Send(ALL_GATHER, axes, count, counts, 1),
        *(
            Send(ALL_TO_ALL, axes, count, num_bytes * count, ROUNDS)
            for num_bytes in (*sent.operands, *sent.results)
        ),
    ]
