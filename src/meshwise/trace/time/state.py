"""States of values along the micro-batch axis, and what the analysis decides for each equation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwise.graph.layout import Layout

WHOLE = "whole"  # equal for all micro-batches
SPLIT = "split"  # a dim holds the rows of the micro-batch
PARTIAL = "partial"  # a term; the value is the reduction over the micro-batches
LOCAL = "local"  # a statistic of the micro-batch alone; the value is the mean over micro-batches
AFTER = "after"  # known only after the loop

BEFORE_LOOP = "before"
INSIDE_LOOP = "inside"
AFTER_LOOP = "after"


@dataclass(frozen=True, slots=True)
class TimeState:
    """State of one value: its kind, the split dim, the monoid of a partial value."""

    kind: str
    dim: int = -1
    monoid: str = ""


R = TimeState(WHOLE)
A = TimeState(AFTER)
L = TimeState(LOCAL)


def split(dim: int) -> TimeState:
    """Rows of the micro-batch along `dim`."""
    return TimeState(SPLIT, dim)


def partial(monoid: str) -> TimeState:
    """A term of a reduction over micro-batches."""
    return TimeState(PARTIAL, monoid=monoid)


def state_of_layout(layout: Layout) -> TimeState:
    """State that a layout on the one-axis time mesh means."""
    if layout.partial:
        return partial(layout.monoid)
    for dim, axes in enumerate(layout.dims):
        if axes:
            return split(dim)
    return R


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """Decision for one equation.

    Attributes:
        region: Before, inside or after the loop.
        choice: Loop or linear group that follows the micro-batch axis (as in a strategy).
        wants: For an equation inside: the state in which each operand enters.
        results: States of the results.
        bodies: For an equation with bodies inside: their analyses.
    """

    region: str
    choice: int
    wants: tuple[TimeState, ...]
    results: tuple[TimeState, ...]
    bodies: tuple[BlockTime, ...] = ()


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
