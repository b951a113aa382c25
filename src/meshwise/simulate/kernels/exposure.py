"""The compiled part of `measure`: how long meshes idle while what they wait for is on its way."""

from __future__ import annotations

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import light_kernel


@light_kernel
def covered_s(start_s: Floats, end_s: Floats, first_s: float, last_s: float) -> float:
    """Return how much of the time from `first_s` to `last_s` intervals cover together.

    Args:
        start_s: For each interval its start, in seconds.
        end_s: For each interval its end.
        first_s: The start of the time, in seconds.
        last_s: Its end.
    """
    total, at = 0.0, first_s
    while True:
        # Of those that end later, the one that starts first.
        following = -1
        for k in range(len(start_s)):
            if end_s[k] > at and (following < 0 or start_s[k] < start_s[following]):
                following = k
        if following < 0 or max(start_s[following], at) >= last_s:
            return total
        total += min(end_s[following], last_s) - max(start_s[following], at)
        at = min(end_s[following], last_s)


@light_kernel
def mesh_exposed_s(
    start_s: Floats,
    end_s: Floats,
    first_wait: Ints,
    waits: Ints,
    transfer_start_s: Floats,
    transfer_end_s: Floats,
    stops: Ints,
) -> float:
    """Return the seconds that one mesh idles while a transfer runs that it waits for.

    Args:
        start_s: For each of its actions the start, in seconds; then the end of the step.
        end_s: For each of its actions the end.
        first_wait: For each of its actions its first place in `waits`, and where the last one ends.
        waits: Transfers that actions wait for.
        transfer_start_s: For each transfer its start.
        transfer_end_s: For each transfer when it arrived.
        stops: Transfers that keep the mesh from computing, in order of start.
    """
    total, before, first_stop = 0.0, 0.0, 0
    num_actions = len(end_s)
    for action in range(num_actions + 1):
        start = start_s[action]
        if start > before:
            while first_stop < len(stops) and transfer_end_s[stops[first_stop]] <= before:
                first_stop += 1
            last_stop = first_stop
            while last_stop < len(stops) and transfer_start_s[stops[last_stop]] < start:
                last_stop += 1
            awaited = stops[first_stop:last_stop]
            if action < num_actions:
                needed = waits[first_wait[action] : first_wait[action + 1]]
                awaited = np.concatenate((needed, awaited))
            total += covered_s(transfer_start_s[awaited], transfer_end_s[awaited], before, start)
        if action < num_actions:
            before = end_s[action]
    return total
