"""A block as its table sees it: members with local tensors, layouts, bytes on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.layout import Layout, local_shape
from meshwise.graph.light import is_bitcast
from meshwise.graph.loops import Strategy, divides, operand_layouts, result_layouts
from meshwise.intra.blocks.partition import OperatorBlock

# A tensor that is in no memory counts this part of its bytes: where all choices cost nothing, the
# solver has nothing to choose by, and takes many times as long.
_FUSED_SHARE = 64

# Layouts of the operands and of the results of an operator.
Ways: TypeAlias = tuple[tuple[Layout, ...], tuple[Layout, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All choices of one block.  Tensors are local: positions in the block's list of locals.

    Attributes:
        strategies: For each choice the strategy of each member.
        ways: For each choice the layouts of each member.
        cost_s: Seconds of each choice, one run.
        wants: Outer tensors: for each choice the layouts in which members want it.
        leaves: Made tensors: for each choice the layout in which users outside find it.
        moves: For each choice the changes of layout inside: (tensor, from, to).
    """

    strategies: tuple[tuple[Strategy, ...], ...]
    ways: tuple[tuple[Ways, ...], ...]
    cost_s: NDArray[np.float64]
    wants: dict[int, tuple[tuple[Layout, ...], ...]]
    leaves: dict[int, tuple[Layout, ...]]
    moves: tuple[tuple[tuple[int, Layout, Layout], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An operator inside a block, with local tensors."""

    op: Operator
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """What a table depends on.

    Attributes:
        block: The block.
        members: Its operators.
        locals: Their tensors.
        outer: Locals that come from outside and are not generated.
        visible: Locals made here that are used outside.
        fused: Locals that are in no memory: see `Blocks.fused`.
    """

    block: OperatorBlock
    members: tuple[Member, ...]
    locals: tuple[Tensor, ...]
    outer: frozenset[int]
    visible: frozenset[int]
    fused: frozenset[int]


def strategy_layouts(op: Operator, strategy: Strategy, sizes: tuple[int, ...]) -> Ways | None:
    """Return the layouts of operands and results.

    Args:
        op: The operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.

    Returns:
        The layouts; None if the strategy is not feasible.
    """
    if not divides(op.rule, strategy, sizes):
        return None
    operands = operand_layouts(op.rule, strategy, sizes)
    results = result_layouts(op.rule, strategy, sizes)
    if operands is None or results is None:
        return None
    return operands, results


def local_bytes(tensor: Tensor, layout: Layout, sizes: tuple[int, ...]) -> int:
    """Return the bytes of one device's tile.

    Args:
        tensor: The tensor.
        layout: How it lies.
        sizes: Sizes of the mesh axes.
    """
    return math.prod(local_shape(tensor.shape, layout, sizes)) * tensor.itemsize


def is_view(op: Operator) -> bool:
    """Return whether the results need not be written: they are read through the operands.

    Args:
        op: The operator.
    """
    return is_bitcast(op) or op.kind in ("broadcast_in_dim", "iota")


class Walk:
    """What one choice of a cluster comes to."""

    __slots__ = ("cost_s", "made", "moves", "reduced", "strategies", "wants", "ways")

    def __init__(self, *, strategies: tuple[Strategy, ...], ways: list[Ways]) -> None:
        self.strategies, self.ways = strategies, ways
        self.cost_s = 0.0
        self.wants: dict[int, list[Layout]] = {}
        self.made: dict[int, Layout] = {}
        self.reduced: dict[int, Layout] = {}
        self.moves: list[tuple[int, Layout, Layout]] = []

    def inside(self, x: int, layout: Layout) -> None:
        """Reshard a tensor between two members; a reduction is done once, for all users."""
        source = self.made[x]
        if source.partial and not layout.partial:
            if x not in self.reduced:
                self.reduced[x] = Layout(source.dims)
                self.moves.append((x, source, self.reduced[x]))
            source = self.reduced[x]
        if source != layout:
            self.moves.append((x, source, layout))


def cluster_bytes(shape: BlockShape, walk: Walk, sizes: tuple[int, ...]) -> int:
    """Bytes that a fused cluster reads and writes on one device."""
    views = {x for m in shape.members if is_view(m.op) for x in m.outputs}
    total = 0
    for x, layouts in walk.wants.items():
        total += sum(local_bytes(shape.locals[x], w, sizes) for w in layouts)
    for x in shape.visible - views:
        total += local_bytes(shape.locals[x], walk.made[x], sizes)
    return total


def moved_bytes(
    shape: BlockShape,
    member: Member,
    operands: tuple[Layout, ...],
    results: tuple[Layout, ...],
    sizes: tuple[int, ...],
) -> int:
    """Bytes that one operator reads and writes on one device; a name is given for free."""
    if member.op.kind == "name":
        return 0
    written = sum(
        local_bytes(shape.locals[x], w, sizes)
        for x, w in zip(member.outputs, results, strict=True)
        if x not in shape.fused
    )
    read = [
        local_bytes(shape.locals[x], w, sizes) // (_FUSED_SHARE if x in shape.fused else 1)
        for x, w in zip(member.inputs, operands, strict=True)
    ]
    if member.op.kind == "gather":
        # Only the gathered rows of the table are read.
        return 2 * written + sum(read[1:])
    return written + sum(read)
