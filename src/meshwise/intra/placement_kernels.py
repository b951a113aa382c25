"""The compiled part of the placement of values in a heap."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from typing import Any

import numpy as np

from meshwise.kernels.compiler import kernel

Array = Any


@kernel
def heap_in_order(start: Array, end: Array, num_bytes: Array, alignment: np.int64) -> int:
    """Size of the heap after each lifetime, in this order, went into its best gap.

    The best gap is the smallest that is large enough; without one the lifetime goes on top of what
    it meets.

    Args:
        start: First times.
        end: Last times.
        num_bytes: Sizes.
        alignment: Gaps begin at multiples of it, in bytes.
    """
    count = len(start)
    # Those that are placed, by offset.
    order = np.empty(count, np.int64)
    low = np.empty(count, np.int64)
    high = np.empty(count, np.int64)
    top = 0
    for k in range(count):
        reached = 0
        best, smallest = -1, 0
        for i in range(k):
            other = order[i]
            if start[other] > end[k] or end[other] < start[k]:
                continue
            gap = low[other] - reached
            if gap >= num_bytes[k] and (best < 0 or gap < smallest):
                best, smallest = reached, gap
            reached = max(reached, high[other])
        offset = best if best >= 0 else reached
        low[k] = offset
        high[k] = -(-(offset + num_bytes[k]) // alignment) * alignment
        top = max(top, offset + num_bytes[k])
        i = k
        while i > 0 and low[order[i - 1]] > offset:
            order[i] = order[i - 1]
            i -= 1
        order[i] = k
    return top
