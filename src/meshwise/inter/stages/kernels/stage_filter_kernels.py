"""The compiled part of what stages may be chosen: memory, and variants that another one beats."""

from __future__ import annotations

import numpy as np

from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import light_kernel


@light_kernel
def most_that_fit(
    resident: Floats, held: Floats, temporary: Floats, memory: Floats, in_flight: Floats
) -> Ints:
    """How many stages to the end memory allows, itself counted; 0 if none.

    Args:
        resident: Bytes of each stage.
        held: Bytes for each micro-batch in flight.
        temporary: Bytes on top.
        memory: Of a device of each stage.
        in_flight: Micro-batches in flight with 1, 2, ... stages to the end, never falling.
    """
    most = np.zeros(len(resident), np.int64)
    for at in range(len(resident)):
        low, high = 0, len(in_flight)
        while low < high:
            middle = (low + high + 1) // 2
            # As `memory_bytes` adds: the same sum, compared with the same limit.
            held_then = in_flight[middle - 1] * held[at]
            if resident[at] + held_then + temporary[at] <= memory[at]:
                low = middle
            else:
                high = middle - 1
        most[at] = low
    return most


@light_kernel
def dominated(
    group: Ints, microbatch_s: Floats, fill_s: Floats, once_s: Floats, most: Ints
) -> Bools:
    """Stages that another of the same group beats or equals in every number.

    With less time, fill, time once a step, and as many stages to the end, a stage can take the
    place of another in any solution and T does not rise.  Of equal ones the first stays.

    Args:
        group: Which layers on which submesh; stages of a group follow one another.
        microbatch_s: Of each stage.
        fill_s: Of the schedule.
        once_s: Once a step.
        most: Stages to the end at most.
    """
    count = len(group)
    worse = np.zeros(count, np.bool_)
    first = 0
    for v in range(count):
        if group[v] != group[first]:
            first = v
        u = first
        while u < count and group[u] == group[v] and not worse[v]:
            beats = (
                u != v
                and most[u] >= most[v]
                and microbatch_s[u] <= microbatch_s[v]
                and fill_s[u] <= fill_s[v]
                and once_s[u] <= once_s[v]
            )
            if beats:
                is_less = (
                    most[u] > most[v]
                    or microbatch_s[u] < microbatch_s[v]
                    or fill_s[u] < fill_s[v]
                    or once_s[u] < once_s[v]
                )
                worse[v] = is_less or u < v
            u += 1
    return worse
