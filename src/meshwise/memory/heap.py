"""The size of the heap in which a compiler keeps values that are live at different times.

XLA keeps all temporaries of a step in one allocation.  It places them one after the other, the
largest first, each into the smallest gap that is free for all of its life.  Gaps that nothing fits
make the heap larger than what is ever live at once.

Source: XLA heap_simulator.cc (GlobalDecreasingSizeBestFitHeap), buffer_assignment.cc.  XLA also
tries the longest-lived first and takes the smaller heap, so this is never below XLA's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Offsets are multiples of it. Source: XLA cpu_function_runtime.h (MinAlign).
_ALIGNMENT_BYTES = 64
# Values smaller than this share of the largest one are not placed one by one, to save time; what is
# live of them at once is added, which is on the safe side: with 1/64 a GPT with 8 MiB a value and
# logits of 800 MiB was 22 % higher.
_SMALL_SHARE = 1 / 256


class Lifetime(NamedTuple):
    """One place in the heap: a value, or several that lie over one another in turn.

    Attributes:
        num_bytes: Its size.
        start: First step at which it is taken.
        end: Last step at which it is taken.
    """

    num_bytes: int
    start: int
    end: int


def heap_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Return the size of the heap for these lifetimes."""
    if not lifetimes:
        return 0
    table, beside = _without_small(np.array(lifetimes, dtype=np.int64))
    num_bytes, start, end = table[np.lexsort((table[:, 1] - table[:, 2], -table[:, 0]))].T
    num_bytes = -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    offset = np.zeros_like(num_bytes)
    for k, size in enumerate(num_bytes.tolist()):
        meets = (start[:k] <= end[k]) & (end[:k] >= start[k])
        below = offset[:k][meets]
        by_offset = np.argsort(below, kind="stable")
        below = below[by_offset]
        tops = np.maximum.accumulate(below + num_bytes[:k][meets][by_offset])
        # Gaps before each placed value; the last one, behind all of them, has no end.
        begins = np.concatenate(((0,), tops))
        gaps = below - begins[:-1]
        gaps = np.where(gaps >= size, gaps, np.iinfo(np.int64).max)
        best = int(gaps.argmin()) if len(gaps) and gaps.min() < np.iinfo(np.int64).max else -1
        offset[k] = begins[best]
    return int((offset + num_bytes).max()) + beside


def without_small(
    lifetimes: Sequence[Lifetime], share: float = _SMALL_SHARE
) -> tuple[list[Lifetime], int]:
    """Return the lifetimes that are placed one by one, and bytes of the others.

    Args:
        lifetimes: The lifetimes; at least one.
        share: What is smaller than this share of the largest one is not placed.
    """
    table, beside = _without_small(np.array(lifetimes, dtype=np.int64), share)
    return [Lifetime(*row) for row in table.tolist()], beside


def _without_small(
    table: NDArray[np.int64], share: float = _SMALL_SHARE
) -> tuple[NDArray[np.int64], int]:
    is_small = table[:, 0] < table[:, 0].max() * share
    return table[~is_small], _most_live(table[is_small])


def _most_live(table: NDArray[np.int64]) -> int:
    """Return the bytes of the lifetimes that are live at once."""
    change = np.zeros(int(table[:, 2].max(initial=0)) + 2, np.int64)
    np.add.at(change, table[:, 1], table[:, 0])
    np.subtract.at(change, table[:, 2] + 1, table[:, 0])
    return int(change.cumsum().max())
