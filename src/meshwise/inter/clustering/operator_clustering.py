"""Operator clustering: K operators in a row become L layers.

Variables: boundaries 0 = b_0 < b_1 < ... < b_L = K among the candidate cuts; layer r holds the
operators b_{r-1} to b_r - 1.

Objective, in this order:

1. least max_r C(b_{r-1}, b_r), the bytes that a layer receives from earlier operators
   (`received_bytes`, `_least_bottleneck`);
2. least sum over r of (FLOP of r / mean FLOP)^2, and w more for each layer that receives several
   values (`_most_even`).  The first part orders layers as the variance of their FLOP does.  The
   second keeps residual blocks whole: a cut inside of one lets two values pass, and the search
   chooses the layout of one.

Subject to FLOP of a layer <= (1 + delta) FLOP_total / L (`_within_limit`).

The answer is optimal over the candidate cuts: all cuts of a chain of up to `max_cuts` + 1
operators, and else those of `candidate_cuts`.

Source: Alpa eq. 6, in which w is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.candidate_cuts import MAX_CUTS, candidate_cuts
from meshwise.inter.clustering.operator_chain import (
    OperatorChain,
    received_bytes,
)
from meshwise.kernels.arrays import Bools, Floats
from meshwise.units import counted

IntArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
AnyArray: TypeAlias = np.ndarray[Any, Any]
Ranges: TypeAlias = tuple[tuple[int, int], ...]

# Alpa's scripts use 0.1 (3-D helper) and 0.5 (default).
DELTA = 0.5
# Sums of FLOP in another order differ by far less.
_ROUNDING = 1e-9
_UNREACHED = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Operators clustered into layers.

    Attributes:
        ranges: First and last operator of each layer.
        worst_received_bytes: The most that one layer receives from earlier ones.
        num_received: How many values layers receive, all together.
        flop: FLOP of each layer.
        all_cuts_tried: Whether every boundary was a candidate, so that no clustering is better.
    """

    ranges: Ranges
    worst_received_bytes: int
    num_received: int
    flop: tuple[float, ...]
    all_cuts_tried: bool


def cluster_table(
    table: CutTable, num_layers: int, delta: float = DELTA, of_several_values: float = 0.0
) -> Layers:
    """Return the best layers that end at candidate boundaries.

    Args:
        table: The operators, with candidate boundaries.
        num_layers: L.
        delta: How much more FLOP than the average a layer may have, as a share.
        of_several_values: w, the penalty for a layer that receives several values, in squares of a
            mean layer.

    Raises:
        InfeasibleError: no such layers; the text says why.
    """
    worst = _least_bottleneck(table, num_layers, delta)
    if worst is None:
        raise InfeasibleError(_why_not(table, num_layers, delta))
    allowed = _within_limit(table, num_layers, delta) & (table.received <= worst)
    return layers_at(table, _most_even(table, allowed, num_layers, of_several_values))


def layers_at(table: CutTable, places: Sequence[int]) -> Layers:
    """Return the layers between boundaries.

    Args:
        table: The operators, with candidate boundaries.
        places: Of the boundaries in the table, the first and the last one too.
    """
    bounds = [int(table.boundaries[p]) for p in places]
    done = table.flop_before
    return Layers(
        ranges=tuple((a, b - 1) for a, b in pairwise(bounds)),
        worst_received_bytes=max(int(table.received[a, b]) for a, b in pairwise(places)),
        num_received=sum(int(table.num_received[a, b]) for a, b in pairwise(places)),
        flop=tuple(float(done[b] - done[a]) for a, b in pairwise(places)),
        all_cuts_tried=len(table.boundaries) == table.chain.num_operators + 1,
    )


@dataclass(frozen=True, slots=True, eq=False)
class CutTable:
    """A chain, candidate boundaries, FLOP before each, bytes and values received between two."""

    chain: OperatorChain
    boundaries: np.ndarray[tuple[int], np.dtype[np.int64]]
    received: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    num_received: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    flop_before: Floats

    @classmethod
    def of(cls, chain: OperatorChain, max_cuts: int = MAX_CUTS) -> CutTable:
        """The boundaries of a chain, as many as are to be tried at most."""
        inner = candidate_cuts(chain, max_cuts)
        boundaries = np.concatenate(([0], inner, [chain.num_operators])).astype(np.int64)
        flop_before = np.concatenate(([0.0], np.cumsum(chain.flop, dtype=np.float64)))
        counted_once = replace(chain, value_bytes=np.ones_like(chain.value_bytes))
        return cls(
            chain,
            boundaries,
            received_bytes(chain, boundaries),
            received_bytes(counted_once, boundaries),
            flop_before[boundaries],
        )

    @property
    def flop(self) -> Floats:
        """FLOP between each two boundaries."""
        return self.flop_before[None, :] - self.flop_before[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Pairs of boundaries that may bound a layer, by the second and then the first."""

    first: IntArray
    last: IntArray
    # Where the pairs of one second boundary begin, and which it is.
    begin: IntArray
    ends: IntArray
    num_boundaries: int

    @classmethod
    def of(cls, allowed: Bools) -> _Spans:
        last, first = np.nonzero(allowed.T)
        ends, begin = np.unique(last, return_index=True)
        return cls(first, last, begin, ends, len(allowed))

    def least(self, values: AnyArray, nothing: float) -> AnyArray:
        """For each second boundary the least value of its pairs."""
        out: AnyArray = np.full(self.num_boundaries, nothing, values.dtype)
        if len(values):
            out[self.ends] = np.minimum.reduceat(values, self.begin)
        return out


def _within_limit(table: CutTable, num_layers: int, delta: float) -> Bools:
    """Which pairs of boundaries may bound a layer."""
    limit = (1 + delta) * table.flop_before[-1] / num_layers
    size = len(table.boundaries)
    return np.triu(np.ones((size, size), np.bool_), 1) & (table.flop <= limit * (1 + _ROUNDING))


def _least_bottleneck(table: CutTable, num_layers: int, delta: float) -> int | None:
    """G(K, L): the least worst received bytes; None if no layers obey the limit."""
    spans = _Spans.of(_within_limit(table, num_layers, delta))
    received = table.received[spans.first, spans.last]
    least = np.full(len(table.boundaries), _UNREACHED)
    least[0] = 0
    for _ in range(num_layers):
        least = spans.least(np.maximum(least[spans.first], received), _UNREACHED)
    return None if least[-1] == _UNREACHED else int(least[-1])


def _most_even(
    table: CutTable, allowed: Bools, num_layers: int, of_several_values: float
) -> list[int]:
    """Places of the boundaries of the best layers with allowed pairs of boundaries."""
    mean = max(float(table.flop_before[-1]), 1.0) / num_layers
    each = (table.flop / mean) ** 2 + of_several_values * (table.num_received > 1)
    spans = _Spans.of(allowed)
    cost = each[spans.first, spans.last]
    least = np.full(len(table.boundaries), np.inf)
    least[0] = 0.0
    totals: list[Floats] = []
    for _ in range(num_layers):
        totals.append(least[spans.first] + cost)
        least = spans.least(totals[-1], np.inf)
    places = [len(table.boundaries) - 1]
    for total in reversed(totals):
        begin, end = np.searchsorted(spans.last, (places[-1], places[-1] + 1))
        places.append(int(spans.first[begin + total[begin:end].argmin()]))
    return places[::-1]


def _why_not(table: CutTable, num_layers: int, delta: float) -> str:
    limit = (1 + delta) * float(table.flop_before[-1]) / num_layers
    text = (
        f"no {counted(num_layers, 'layer')} with at most {limit:.4g} FLOP each (delta {delta:g}): "
    )
    if num_layers >= len(table.boundaries) or num_layers < 1:
        return text + f"there are {counted(len(table.boundaries) - 1, 'piece')} to choose from"
    piece = int(np.argmax(np.diff(table.flop_before)))
    first, last = int(table.boundaries[piece]), int(table.boundaries[piece + 1]) - 1
    flop = float(table.chain.flop[first : last + 1].sum())
    if flop > limit:
        return text + (
            f"operators {first} to {last}, which no candidate cut divides, have {flop:.4g}; "
            "take fewer layers or a larger delta"
        )
    return text + "no choice of cuts is that even; take fewer layers or a larger delta"
