"""What one stage on all devices might take if it filled its memory to the limit."""

from __future__ import annotations

import math

from meshwise.inter.stages.stage_problem import StageCosts


def seconds_at_the_limit(
    costs: StageCosts, m: int, ways: tuple[int, int], count: int, in_flight: float
) -> float:
    """About the seconds of a step of one stage that fills its memory; infinite if none can.

    Args:
        costs: Of stages, or bounds of them.
        m: The submesh.
        ways: Variants at the lowest and at the highest price of memory.
        count: B.
        in_flight: Micro-batches that it holds.
    """
    at = [(0, costs.num_layers - 1, m, v) for v in ways]
    fast_s, slow_s = (count * float(costs.busy_s[x]) + float(costs.once_s[x]) for x in at)
    most, least = (float(costs.peak_bytes(in_flight, x)) for x in at)
    memory_bytes = costs.submeshes[m].memory_bytes
    if not math.isfinite(slow_s) or least > memory_bytes or most <= memory_bytes:
        # One that fits at the lowest price is among those that were searched.
        return math.inf
    return fast_s + (slow_s - fast_s) * (most - memory_bytes) / (most - least)
