"""Which numbers of micro-batches are tried, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.errors import PlanError
from meshwise.inter.search_space import SearchOptions


def microbatch_counts(options: SearchOptions) -> Sequence[int]:
    """Values of B that may be tried.

    Raises:
        PlanError: one that was asked for does not divide the batch.
    """
    size = options.batch_size
    if options.num_microbatches is None:
        return _near_powers(size)
    if not options.num_microbatches:
        raise PlanError("num_microbatches is empty; leave it out to try powers of two")
    for count in options.num_microbatches:
        if count < 1 or size % count:
            divisors = [b for b in range(1, size + 1) if size % b == 0][:16]
            raise PlanError(
                f"the batch of {size} is not divisible by num_microbatches={count}; divisors are "
                f"{divisors}"
            )
    return options.num_microbatches


def _near_powers(size: int) -> list[int]:
    """For each power of two the nearest divisor, where one is within a factor of the root of 2."""
    divisors = [b for b in range(1, size + 1) if size % b == 0]
    found: set[int] = set()
    for power in range(size.bit_length()):
        off, divisor = min((abs(math.log2(b) - power), b) for b in divisors)
        if off <= 0.5:
            found.add(divisor)
    return sorted(found)


def together(options: SearchOptions, num_devices: int) -> tuple[list[int], list[int]]:
    """Numbers of micro-batches that are searched as one, and those below them, one by one.

    Many micro-batches make bubbles short; few make operators large.  The first go from next to a
    middle value upwards: bounds for the least of them serve them all.

    Returns:
        The first, the middle value before the others; the others, downwards.
    """
    values = list(microbatch_counts(options))
    if options.num_microbatches is not None:
        return values, []
    middle = _middle(values, num_devices)
    lowest = _lowest(values, middle)
    return [*values[middle:], *reversed(values[lowest:middle])], values[:lowest][::-1]


def _middle(values: Sequence[int], num_devices: int) -> int:
    return min(range(len(values)), key=lambda i: abs(math.log2(values[i] / (4 * num_devices))))


def _lowest(values: Sequence[int], middle: int) -> int:
    # With nothing above the middle one, two below it.
    return max(middle - (2 if middle == len(values) - 1 else 1), 0)


def bounds_of(count: int, values: Sequence[int]) -> int:
    """A number of micro-batches whose bounds serve `count`, among those searched with it."""
    lowest = min(values)
    return lowest if count % lowest == 0 else count
