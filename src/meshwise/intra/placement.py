"""Where XLA puts values that are live at different times: the size of its heap.

XLA:CPU keeps all temporaries of a step in one allocation.  It places them twice, largest first and
longest-lived first, each into the smallest gap that is free for all of its life, and takes the
smaller heap.  Gaps that nothing fits make the heap larger than what is ever live.

Source: XLA heap_simulator.cc (GlobalDecreasingSizeBestFitHeap, ChooseBestHeapAlgorithm),
buffer_assignment.cc (AssignBuffersWithSequentialOrdering).  From the live ranges of a compiled
program the smaller one is XLA's heap to 56 of 3,432,056 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.intra.placement_kernels import heap_in_order

# Offsets are multiples of it. Source: XLA cpu_function_runtime.h (MinAlign).
_ALIGNMENT_BYTES = np.int64(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """One place in the heap: a value, with those that lie over it in turn.

    Attributes:
        num_bytes: Its size.
        start: First time at which it is taken.
        ends: Last time of each value in it; there the next one is made over it.
        is_overwritten: Whether a result of the program may be made over the last one.
    """

    num_bytes: int
    start: int
    ends: tuple[int, ...]
    is_overwritten: bool = False

    @property
    def end(self) -> int:
        """Last time."""
        return self.ends[-1]

    def later(self, steps: int) -> Lifetime:
        """The same, some steps later."""
        ends = tuple(end + steps for end in self.ends)
        return Lifetime(
            num_bytes=self.num_bytes,
            start=self.start + steps,
            ends=ends,
            is_overwritten=self.is_overwritten,
        )


def heap_bytes(lifetimes: Sequence[Lifetime], *, is_sure: bool = True) -> int:
    """Size of the heap that XLA makes for these lifetimes.

    XLA takes the smaller of the two.  Gaps hang on lifetimes to the last step: where these are
    only roughly those of XLA, the larger one is the safe side.

    Args:
        lifetimes: Of all values.
        is_sure: Whether the order of the program is XLA's.
    """
    by_size = sorted(lifetimes, key=lambda x: (-x.num_bytes, x.start - x.ends[0]))
    by_length = sorted(lifetimes, key=lambda x: (x.start - x.end, -x.num_bytes))
    heaps = _placed(by_size), _placed(by_length)
    return min(heaps) if is_sure else max(heaps)


def _placed(lifetimes: Sequence[Lifetime]) -> int:
    """Heap after each lifetime, in this order, went into its best gap."""
    start, end, num_bytes = (
        np.fromiter(values, np.int64, len(lifetimes))
        for values in (
            (x.start for x in lifetimes),
            (x.end for x in lifetimes),
            (x.num_bytes for x in lifetimes),
        )
    )
    return int(heap_in_order(start, end, num_bytes, _ALIGNMENT_BYTES))
