"""Where a model repeats itself: the layers that people divide among stages by hand.

Hand-written systems know their blocks.  Here they are found: the longest run of operators that is
some period, repeated; what stands before (an embedding) and after it (a head) are layers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshwise.inter.clustering.operator_chain import OperatorChain, crossing_bytes
from meshwise.inter.clustering.operator_clustering import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The repeated part of a row of layers.

    Attributes:
        first: First layer of it.
        num_layers: Layers in it.
        period: Layers that repeat; a stage holds whole periods.
    """

    first: int
    num_layers: int
    period: int

    @property
    def num_periods(self) -> int:
        """How often they repeat."""
        return self.num_layers // self.period


def block_ranges(chain: OperatorChain) -> Ranges:
    """Return the first and last operator of each block, of what stands before them and after them.

    Blocks begin where least crosses.  A chain without a repeated part is one layer.
    """
    marks = _marks(chain)
    found = _repeated(marks, chain.is_heavy.tolist())
    if found is None:
        return ((0, chain.num_operators - 1),)
    first, end, period = found
    crossing = crossing_bytes(chain)
    # The run may begin anywhere in a block: it begins where cuts are cheap and most blocks remain.
    starts = range(first, first + period)
    start = min(starts, key=lambda k: (crossing[k + period], -((end - k) // period), k))
    if start - period >= 0 and crossing[start] == crossing[start + period]:
        # The first block's input may be made by other operators than that of the others.
        before = start - period
        if marks[before + 1 : start] == marks[before + 1 + period : start + period]:
            start = before
    bounds = [*range(start, end + 1, period)]
    bounds = [0, *(b for b in bounds if 0 < b < chain.num_operators), chain.num_operators]
    return tuple((a, b - 1) for a, b in pairwise(bounds))


def body_of(classes: Sequence[int]) -> Body:
    """Return the repeated part of layers; `classes` are those of a `LayerSource`."""
    size = len(classes)
    best = Body(first=0, num_layers=1, period=1)
    for period in range(1, size // 2 + 1):
        first = 0
        while first + period < size:
            end = first + period
            while end < size and classes[end] == classes[end - period]:
                end += 1
            count = (end - first) // period * period
            if count > period and count > best.num_layers:
                best = Body(first=first, num_layers=count, period=period)
            first = max(end - period, first) + 1
    if best.num_layers == 1:
        return Body(first=0, num_layers=size, period=1)
    return best


def _marks(chain: OperatorChain) -> list[tuple[float, bool, tuple[int, ...]]]:
    """What equal operators of different blocks have in common: work, and how far back they read."""
    back: list[list[int]] = [[] for _ in range(chain.num_operators)]
    producer: list[int] = chain.producer.tolist()
    values: list[int] = chain.read_value.tolist()
    readers: list[int] = chain.read_by.tolist()
    for value, reader in zip(values, readers, strict=True):
        back[reader].append(reader - producer[value])
    return [
        (float(flop), bool(heavy), tuple(sorted(reads)))
        for flop, heavy, reads in zip(chain.flop, chain.is_heavy, back, strict=True)
    ]


def _repeated(marks: Sequence[object], is_heavy: Sequence[bool]) -> tuple[int, int, int] | None:
    """First operator, end and period of the longest repeated run that holds heavy operators."""
    numbers: dict[object, int] = {}
    mark = np.array([numbers.setdefault(m, len(numbers)) for m in marks])
    size = len(mark)
    best: tuple[int, int, int] | None = None
    for period in range(1, size // 2 + 1):
        same = np.concatenate(([False], mark[period:] == mark[:-period], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            end = high + period
            if end - low < 2 * period or not any(is_heavy[low : low + period]):
                continue
            if best is None or end - low > best[1] - best[0]:
                best = (low, end, period)
    return best
