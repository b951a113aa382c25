"""States of values along the micro-batch axis, and what the analysis decides for each equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwise.graph.layout import SUM
from meshwise.graph.loops import NONE, PARALLEL, DimMap, LoopRule

WHOLE = "whole"  # equal for all micro-batches
SPLIT = "split"  # a dim holds the rows of the micro-batch
PARTIAL = "partial"  # a term; the value is the reduction over the micro-batches
LOCAL = "local"  # a statistic of the micro-batch alone; the value is the mean over micro-batches
AFTER = "after"  # known only after the loop

# The choice of an equation that joins or cuts blocks of rows (`row_blocks`): it follows no loop.
BLOCKS = 1 << 30

BEFORE_LOOP = "before"
INSIDE_LOOP = "inside"
AFTER_LOOP = "after"


@dataclass(frozen=True, slots=True)
class TimeState:
    """State of one value.

    Attributes:
        kind: One of the five above.
        dim: The split dim.
        monoid: The reduction of a partial value.
        parts: Number of equal parts of the split dim, each with rows of every micro-batch.  In an
            argument it is `Batch.groups`.  What is major to the batch in that dim multiplies it:
            `vmap` of a grouped convolution over its kernel makes output channels of (group, row,
            channel).  Two blocks of rows one behind the other double it.
    """

    kind: str
    dim: int = -1
    monoid: str = ""
    parts: int = 1


R = TimeState(WHOLE)
A = TimeState(AFTER)
L = TimeState(LOCAL)


def split(dim: int, parts: int = 1) -> TimeState:
    """Rows of the micro-batch along `dim`, in each of equal parts of it."""
    return TimeState(SPLIT, dim, parts=parts)


def partial(monoid: str) -> TimeState:
    """Return a term of a reduction over micro-batches."""
    return TimeState(PARTIAL, monoid=monoid)


def parts_of(rule: LoopRule, choice: int, states: Sequence[TimeState]) -> int:
    """Return how many equal parts of a loop hold rows of every micro-batch, by its operands."""
    for state, dims in zip(states, rule.operands, strict=True):
        if state.kind == SPLIT and state.dim < len(dims) and choice in dims[state.dim]:
            return max(state.parts // _along(rule, choice, 1, dims).parts, 1)
    return 1


def operand_states(rule: LoopRule, choice: int, parts: int = 1) -> tuple[TimeState, ...]:
    """States in which operands enter where a loop or linear group follows the micro-batches.

    Args:
        rule: The loops.
        choice: The loop, or the linear group.
        parts: What `parts_of` returns.
    """
    terms = rule.linear[-2 - choice] if choice <= -2 else ()
    return tuple(
        partial(SUM) if index in terms else _along(rule, choice, parts, dims)
        for index, dims in enumerate(rule.operands)
    )


def result_states(rule: LoopRule, choice: int, parts: int = 1) -> tuple[TimeState, ...]:
    """States in which results leave, as `operand_states`.

    A loop that reduces leaves as terms only results that do not follow it.
    """
    kind = reduction_of(rule, choice)
    return tuple(
        _along(rule, choice, parts, dims)
        if kind == PARALLEL or any(choice in loops for loops in dims)
        else partial(kind)
        for dims in rule.results
    )


def reduction_of(rule: LoopRule, choice: int) -> str:
    """Return how results become whole, by a reduction; `PARALLEL` if they are not partial."""
    return SUM if choice <= -2 else PARALLEL if choice == NONE else rule.loops[choice].kind


def _along(rule: LoopRule, choice: int, parts: int, dims: DimMap) -> TimeState:
    for dim, loops in enumerate(dims):
        if choice in loops:
            major = loops[: loops.index(choice)]
            return split(dim, math.prod(rule.loops[loop].size for loop in major) * parts)
    return R


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """Decision for one equation.

    Attributes:
        region: Before, inside or after the loop.
        choice: Loop or linear group that follows the micro-batch axis (as in a strategy); `BLOCKS`
            where blocks of rows are joined or taken apart.
        parts: In how many equal parts of the loop each micro-batch has rows.
        wants: For an equation inside: the state in which each operand enters.
        results: States of the results.
        bodies: For an equation with bodies inside: their analyses.
    """

    region: str
    choice: int
    wants: tuple[TimeState, ...]
    results: tuple[TimeState, ...]
    bodies: tuple[BlockTime, ...] = ()
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """Analysis of a program or body.

    Attributes:
        inputs: States of the inputs.
        states: State of each value by id.
        nodes: One decision per equation.
        outputs: States of the results; for a body the states in which they leave.
    """

    inputs: tuple[TimeState, ...]
    states: Mapping[int, TimeState]
    nodes: tuple[NodeTime, ...]
    outputs: tuple[TimeState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """What a part of a step has from its other parts and gives to them, by position.

    Attributes:
        streamed: Inputs that hold rows; there is one micro-batch of them at a time, never all.
        late: Inputs that are known only after all micro-batches.
        local: Inputs that are statistics of each micro-batch alone.
        local_results: Results that must be so.
        parts: `TimeState.parts` of inputs that hold rows; `Batch.groups` for those left out.
    """

    streamed: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    local: frozenset[int] = frozenset()
    local_results: frozenset[int] = frozenset()
    parts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """How the batch is cut.

    Attributes:
        size: Rows of the batch, n.
        num_microbatches: B.
        groups: G: row r belongs to micro-batch `(r // (n / (G B))) % B`, so that a batch split
            over up to G devices is cut in time without communication.
    """

    size: int
    num_microbatches: int
    groups: int
