"""The compiled part of what stages may be chosen: memory, and variants that another one beats."""

from __future__ import annotations

import numpy as np

from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import light_kernel


@light_kernel
def most_that_fit(
    resident: Floats,
    held: Floats,
    temporary: Floats,
    memory: Floats,
    in_flight: Floats,
    possible: Bools,
) -> Ints:
    """How many stages to the end memory allows, itself counted; 0 if none.

    Args:
        resident: Bytes, one row for each run of layers on a submesh, one column for each variant.
        held: Bytes for each micro-batch in flight.
        temporary: Bytes on top.
        memory: Of a device, one for each row.
        in_flight: Micro-batches in flight with 1, 2, ... stages to the end, never falling.
        possible: Variants that are looked at, a row each; 0 for others.
    """
    rows, columns = resident.shape
    most = np.zeros((rows, columns), np.int64)
    for row in range(rows):
        for v in range(columns):
            if not possible[row, v]:
                continue
            low, high = 0, len(in_flight)
            while low < high:
                middle = (low + high + 1) // 2
                # As `memory_bytes` adds: the same sum, compared with the same limit.
                held_then = in_flight[middle - 1] * held[row, v]
                if resident[row, v] + held_then + temporary[row, v] <= memory[row]:
                    low = middle
                else:
                    high = middle - 1
            most[row, v] = low
    return most


@light_kernel
def dominated(
    microbatch_s: Floats,
    fill_s: Floats,
    once_s: Floats,
    most: Ints,
    possible: Bools,
) -> Bools:
    """Variants that another of the same layers and submesh beats or equals in every number.

    With less time, fill, time once a step, and as many stages to the end, a stage can take the
    place of another in any solution and T does not rise.  Of equal variants the first stays.

    Args:
        microbatch_s: One row for each run of layers on a submesh, one column for each variant;
            so are the others.
        fill_s: Of the schedule.
        once_s: Once a step.
        most: Stages to the end at most.
        possible: The variants to be compared.
    """
    rows, columns = microbatch_s.shape
    worse = np.zeros((rows, columns), np.bool_)
    for row in range(rows):
        for v in range(columns):
            if not possible[row, v]:
                continue
            for u in range(columns):
                if u == v or not possible[row, u] or most[row, u] < most[row, v]:
                    continue
                if (
                    microbatch_s[row, u] > microbatch_s[row, v]
                    or fill_s[row, u] > fill_s[row, v]
                    or once_s[row, u] > once_s[row, v]
                ):
                    continue
                is_less = (
                    most[row, u] > most[row, v]
                    or microbatch_s[row, u] < microbatch_s[row, v]
                    or fill_s[row, u] < fill_s[row, v]
                    or once_s[row, u] < once_s[row, v]
                )
                if is_less or u < v:
                    worse[row, v] = True
                    break
    return worse
