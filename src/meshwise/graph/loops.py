"""Operators as loops: the factor rule of one operator, and what a strategy makes of it.

A rule names the loops of an operator and which loop each dim of each operand and result follows.
A *strategy* maps each mesh axis to at most one loop (or lets a partial sum pass through a linear
operator).  Layouts of operands and results, local sizes and communication all follow from that.

Source: docs/decisions/0003; Alpa table 3 is what this enumeration yields for a batched product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwise.graph.layout import SUM, Layout, local_shape
from meshwise.graph.sent import Dispatch, Halo, Ring

PARALLEL = "parallel"
# Why dims of an operator stay whole about which nothing is known.
NO_RULE = "no rule"

# A dim follows a run of loops, major to minor; () is a dim that must stay whole (or has size 1).
DimMap = tuple[tuple[int, ...], ...]

# One choice per mesh axis: a loop index, NONE, or `passing(k)`.
Strategy = tuple[int, ...]
NONE = -1


def passing(group: int) -> int:
    """Return the choice of an axis along which a linear group of the operands is partial.

    Args:
        group: Number of the group in `LoopRule.linear`.
    """
    return -2 - group


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of an operator.

    Attributes:
        size: Trip count.
        kind: `parallel`, or the monoid with which the loop reduces its results.
        block: The local form needs contiguous blocks (a masked lookup): not for the micro-batch
            axis, whose rows are not contiguous.
    """

    size: int
    kind: str = PARALLEL
    block: bool = False


@dataclass(frozen=True, slots=True)
class LoopRule:
    """The loop structure of one operator (its factor rule).

    A loop of a monoid reduces the results whose dims do not follow it.

    Attributes:
        loops: The loops that a mesh axis may be mapped to.
        operands: For each operand, the loops that each dim follows.
        results: The same for each result.
        linear: Groups of operands: if all operands of one group are partial sums along an axis
            and the others are replicated along it, the results are partial sums.
        whole: Why dims stay whole although the operator is ruled; empty if none does.
        ruled: False for an operator without a rule: it runs replicated and is reported.
        halos: Operand dims whose blocks overlap, in the order in which edges are exchanged.
        ring: What goes round the devices; None where nothing does.
        dispatch: How rows may go to the devices of their groups; None where they may not.
    """

    loops: tuple[Loop, ...]
    operands: tuple[DimMap, ...]
    results: tuple[DimMap, ...]
    linear: tuple[tuple[int, ...], ...] = ()
    whole: str = ""
    ruled: bool = True
    halos: tuple[Halo, ...] = ()
    ring: Ring | None = None
    dispatch: Dispatch | None = None


def axes_of_loop(strategy: Strategy, loop: int) -> tuple[int, ...]:
    """Return the mesh axes that split a loop, major to minor (ascending).

    Args:
        strategy: The strategy.
        loop: Position of the loop.
    """
    if loop not in strategy:
        return ()
    return tuple([a for a, choice in enumerate(strategy) if choice == loop])


def axes_along(rule: LoopRule, strategy: Strategy, loop: int) -> tuple[int, ...]:
    """Return the mesh axes that split the dims that follow a loop, major to minor (ascending).

    Other than in `axes_of_loop`, axes mapped to a dispatch count for its rows and its groups.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        loop: Position of the loop.
    """
    dispatch = rule.dispatch
    if dispatch is None or loop not in (dispatch.rows, dispatch.groups):
        return axes_of_loop(strategy, loop)
    return tuple([a for a, choice in enumerate(strategy) if choice in (loop, dispatch.loop)])


def dim_axes(
    rule: LoopRule, strategy: Strategy, loops: tuple[int, ...], sizes: Sequence[int]
) -> tuple[int, ...] | None:
    """Axes that split a dim which follows `loops`; None if the tile would not be a block.

    A minor loop of a compound dim may be split only if every loop above it is split completely,
    or goes round over the same rows.
    """
    if len(loops) == 1:
        return axes_along(rule, strategy, loops[0])
    axes: tuple[int, ...] = ()
    complete = True
    for loop in loops:
        here = axes_along(rule, strategy, loop)
        if here and not complete:
            return None
        axes += here
        parts = math.prod(sizes[a] for a in here)
        is_ring = rule.ring is not None and loop == rule.ring.loop
        complete = complete and (is_ring or parts == rule.loops[loop].size)
    return axes


def _split_dims(
    rule: LoopRule, strategy: Strategy, dims: DimMap, sizes: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    out: list[tuple[int, ...]] = []
    for loops in dims:
        if len(loops) == 1 and loops[0] not in strategy and rule.dispatch is None:
            out.append(())
            continue
        axes = dim_axes(rule, strategy, loops, sizes)
        if axes is None:
            return None
        out.append(axes)
    return tuple(out)


def operand_layouts(
    rule: LoopRule, strategy: Strategy, sizes: Sequence[int]
) -> tuple[Layout, ...] | None:
    """Return the layouts in which a strategy wants its operands.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.

    Returns:
        A layout for each operand; None if one of them is no block layout.
    """
    layouts: list[Layout] = []
    for index, dims in enumerate(rule.operands):
        split = _split_dims(rule, strategy, dims, sizes)
        if split is None:
            return None
        partial = tuple(
            a
            for a, choice in enumerate(strategy)
            if choice <= -2 and index in rule.linear[-2 - choice]
        )
        layouts.append(Layout(split, partial, SUM if partial else ""))
    return tuple(layouts)


def result_layouts(
    rule: LoopRule, strategy: Strategy, sizes: Sequence[int]
) -> tuple[Layout, ...] | None:
    """Return the layouts in which a strategy leaves its results.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.

    Returns:
        A layout for each result; None if one of them cannot be expressed.
    """
    reduced: list[int] = []
    monoids: set[str] = set()
    for axis, choice in enumerate(strategy):
        kind = SUM if choice <= -2 else PARALLEL if choice == NONE else rule.loops[choice].kind
        if kind != PARALLEL:
            reduced.append(axis)
            monoids.add(kind)
    if len(monoids) > 1:
        return None
    monoid = next(iter(monoids), "")
    layouts: list[Layout] = []
    for dims in rule.results:
        split = _split_dims(rule, strategy, dims, sizes)
        if split is None:
            return None
        partial = tuple(a for a in reduced if not any(a in axes for axes in split))
        layouts.append(Layout(split, partial, monoid if partial else ""))
    return tuple(layouts)


def block_shapes(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the shapes of the blocks of one device: of each operand, and of each result.

    Args:
        rule: The loops of the operator.
        strategy: A feasible strategy.
        sizes: Sizes of the mesh axes.
        operands: Shapes of the whole operands.
        results: Shapes of the whole results.
    """
    wants, makes = operand_layouts(rule, strategy, sizes), result_layouts(rule, strategy, sizes)
    assert wants is not None
    assert makes is not None
    return (
        [local_shape(shape, x, sizes) for shape, x in zip(operands, wants, strict=True)],
        [local_shape(shape, x, sizes) for shape, x in zip(results, makes, strict=True)],
    )


def loop_parts(strategy: Strategy, loop: int, sizes: Sequence[int]) -> int:
    """Return into how many parts a strategy splits a loop.

    Args:
        strategy: The strategy.
        loop: Position of the loop.
        sizes: Sizes of the mesh axes.
    """
    return math.prod([sizes[a] for a in axes_of_loop(strategy, loop)])


def halo_loop(rule: LoopRule, halo: Halo) -> int:
    """Return the loop that the dim of a halo follows.

    Args:
        rule: The loops of the operator.
        halo: One of its halos.
    """
    return rule.operands[halo.operand][halo.dim][0]


def divides(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> bool:
    """Return whether loops are cut into equal parts, and no edge is longer than a block.

    The rows of a ring are cut along both of its loops, and what goes round along the first.  Where
    rows are dispatched, no axis may be mapped to the loop of the groups itself.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    for loop in {choice for choice in strategy if choice >= 0}:
        if rule.loops[loop].size % loop_parts(strategy, loop, sizes):
            return False
    for halo in rule.halos:
        parts = loop_parts(strategy, halo_loop(rule, halo), sizes)
        if parts > 1 and (halo.size % parts or halo.size // parts < max(halo.low, halo.high)):
            return False
    if rule.dispatch is not None and rule.dispatch.loop in strategy:
        if rule.dispatch.groups in strategy:
            return False
        for loop in (rule.dispatch.rows, rule.dispatch.groups):
            parts = math.prod(sizes[a] for a in axes_along(rule, strategy, loop))
            if rule.loops[loop].size % parts:
                return False
    if rule.ring is not None:
        parts = loop_parts(strategy, rule.ring.loop, sizes)
        further = loop_parts(strategy, rule.ring.rows, sizes)
        return not (rule.ring.size % parts or rule.loops[rule.ring.loop].size % (parts * further))
    return True


def is_feasible(rule: LoopRule, strategy: Strategy, sizes: Sequence[int]) -> bool:
    """Return whether a strategy divides its loops evenly and every layout is a block layout.

    Args:
        rule: The loops of the operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    return (
        divides(rule, strategy, sizes)
        and operand_layouts(rule, strategy, sizes) is not None
        and result_layouts(rule, strategy, sizes) is not None
    )


def enumerate_strategies(rule: LoopRule, sizes: Sequence[int]) -> Iterator[Strategy]:
    """Yield all feasible strategies of an operator, the fully replicated one first.

    Args:
        rule: The loops of the operator.
        sizes: Sizes of the mesh axes.
    """
    choices = (
        NONE,
        *(i for i, loop in enumerate(rule.loops) if loop.size > 1),
        *(passing(k) for k in range(len(rule.linear))),
    )
    for strategy in itertools.product(choices, repeat=len(sizes)):
        if is_feasible(rule, strategy, sizes):
            yield strategy


def replicated_rule(operand_ranks: Sequence[int], result_ranks: Sequence[int]) -> LoopRule:
    """Return the rule of an operator about which nothing is known: every dim stays whole.

    Args:
        operand_ranks: Number of dims of each operand.
        result_ranks: Number of dims of each result.
    """
    return LoopRule(
        loops=(),
        operands=tuple(((),) * rank for rank in operand_ranks),
        results=tuple(((),) * rank for rank in result_ranks),
        whole=NO_RULE,
        ruled=False,
    )
