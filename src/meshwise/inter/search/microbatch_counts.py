"""Which numbers of micro-batches are tried, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.errors import PlanError
from meshwise.inter.search.search_space import SearchOptions

# Of the numbers below the first ones, so many share bounds.
_SHARING = 2
# Above so many devices a pipeline has far fewer stages than devices: at most as many as layers.
_MANY = 1024


class Group(NamedTuple):
    """Numbers of micro-batches that are searched as one.

    Attributes:
        counts: The numbers.
        sharing: Those that share bounds: these and maybe some of the next group.
    """

    counts: list[int]
    sharing: list[int]


def microbatch_counts(options: SearchOptions) -> Sequence[int]:
    """Return the values of B that may be tried.

    Args:
        options: What is searched.

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


def most_stages(num_devices: int, num_layers: int) -> int:
    """Return about the largest number of stages, by which `groups` begins.

    Args:
        num_devices: Of the cluster.
        num_layers: Of the step.
    """
    return num_devices if num_devices <= _MANY else min(num_devices, num_layers)


def groups(options: SearchOptions, num_stages: int) -> list[Group]:
    """Numbers of micro-batches that are searched as one, group after group.

    Many micro-batches make bubbles short; few make operators large.  The first group goes from
    next to a middle value upwards, the middle value first; the others go downwards, one by one.

    Args:
        options: What is searched.
        num_stages: About the largest number of stages; the middle value is four times it.
    """
    values = list(microbatch_counts(options))
    if options.num_microbatches is not None:
        return [Group(values, values)]
    middle = _middle(values, num_stages)
    lowest = _lowest(values, middle)
    first = [*values[middle:], *reversed(values[lowest:middle])]
    fewer = values[:lowest][::-1]
    pairs = [fewer[i - i % _SHARING :][:_SHARING] for i in range(len(fewer))]
    return [Group(first, first), *(Group([b], pair) for b, pair in zip(fewer, pairs, strict=True))]


def _middle(values: Sequence[int], num_stages: int) -> int:
    return min(range(len(values)), key=lambda i: abs(math.log2(values[i] / (4 * num_stages))))


def _lowest(values: Sequence[int], middle: int) -> int:
    # With nothing above the middle one, two below it.
    return max(middle - (2 if middle == len(values) - 1 else 1), 0)


def bounds_of(count: int, values: Sequence[int]) -> int:
    """A number of micro-batches whose bounds serve `count` and others searched with it.

    Bounds for one number serve its multiples, the better the closer.
    """
    common = math.gcd(*values)
    if 2 * common >= min(values):
        return common
    return min(values) if count % min(values) == 0 else count
