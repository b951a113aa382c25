"""The size of the heap in which XLA:TPU keeps values that are live at different times.

It places values in the order in which they are made, each into the lowest gap that is free then.
Gaps that nothing fits make the heap larger than what is ever live at once.

Source: buffer assignments of compiled programs (libtpu 0.0.42.1): of two steps of a BERT the heap
is within 3 % of the compiler's, and the report is exact (docs/measurements/target_memory.md).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from meshwise.memory.heap import Lifetime, without_small

# Whether a large value fits into a gap depends on small ones below it: of a BERT the report is 0.75
# to 1.08 of the compiled one, by what is left out as small.  So the mean of several is taken.
_SMALL_SHARES = (1 / 256, 1 / 64, 1 / 16)


def mean_heap_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Return the size of the heap, as the mean over what is placed one by one."""
    if not lifetimes:
        return 0
    return sum(first_fit_bytes(lifetimes, share) for share in _SMALL_SHARES) // len(_SMALL_SHARES)


def first_fit_bytes(lifetimes: Sequence[Lifetime], share: float) -> int:
    """Return the size of the heap.

    Args:
        lifetimes: What lies in it; at least one.
        share: What is smaller than this share of the largest value is added up.
    """
    placed, beside = without_small(lifetimes, share)
    # Offset, size and end of what lies in the heap, lowest first.
    there: list[tuple[int, int, int]] = []
    top = 0
    for size, start, end in sorted(placed, key=lambda place: place.start):
        there = [place for place in there if place[2] >= start]
        offset = 0
        for begin, length, _ in there:
            if begin - offset >= size:
                break
            offset = max(offset, begin + length)
        insort(there, (offset, size, end))
        top = max(top, offset + size)
    return top + beside
