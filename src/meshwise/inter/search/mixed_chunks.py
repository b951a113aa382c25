"""Pipelines of two ways in one, so that a mesh is as full as it may be.

At one price of memory all stages hold much, or all hold little.  Between two prices there may be no
plan, so that a pipeline that fits leaves memory unused.  Then only as many stages of each mesh as
must are planned in the way that holds less: the first ones, which have most in flight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.chunked_pipeline import ChunkedPipeline, pipeline_in_ways

# Of a step; for less no stages are planned in two ways.
_WORTH = 1e-3


def best_mixed(
    planned: Sequence[ChunkedPipeline], memory_bytes: float, source: LayerSource
) -> ChunkedPipeline | None:
    """Return the fastest pipeline of two ways that fits; None if none beats those of one.

    Args:
        planned: Pipelines of one shape, each planned in one way.
        memory_bytes: What a device may hold.
        source: The layers.
    """
    small = [made for made in planned if made.peak_bytes <= memory_bytes]
    large = [made for made in planned if made.peak_bytes > memory_bytes]
    fastest_s = min((made.time.total_s for made in small), default=math.inf)
    best: ChunkedPipeline | None = None
    pairs = itertools.product(large, small)
    for about_s, fast, slow in sorted(
        ((_between_s(*pair, memory_bytes), *pair) for pair in pairs), key=lambda each: each[0]
    ):
        below_s = best.time.total_s if best else fastest_s * (1 - _WORTH)
        if about_s >= below_s:
            break
        made = _fullest(fast, slow, memory_bytes, source)
        if made is not None and made.time.total_s < below_s:
            best = made
    return best


def _between_s(fast: ChunkedPipeline, slow: ChunkedPipeline, memory_bytes: float) -> float:
    """Return about what a step takes if a mesh is full, by a line between the two."""
    share = (fast.peak_bytes - memory_bytes) / (fast.peak_bytes - slow.peak_bytes)
    return fast.time.total_s + share * (slow.time.total_s - fast.time.total_s)


def _fullest(
    fast: ChunkedPipeline, slow: ChunkedPipeline, memory_bytes: float, source: LayerSource
) -> ChunkedPipeline | None:
    """Return the pipeline with the fewest stages of the slow way that fits; None if none does."""
    found: ChunkedPipeline | None = None
    low, high = 0, fast.shape.schedule.chunks
    while high - low > 1:
        middle = (low + high) // 2
        made = _mixed(fast, slow, middle, source)
        if made is not None and made.peak_bytes <= memory_bytes:
            found, high = made, middle
        else:
            low = middle
    return found


def _mixed(
    fast: ChunkedPipeline, slow: ChunkedPipeline, num_slow: int, source: LayerSource
) -> ChunkedPipeline | None:
    """Return a pipeline whose meshes have some stages of the slow way; None if a cost is unknown.

    Args:
        fast: Gives the cuts.
        slow: Holds less.
        num_slow: Stages of each mesh in the slow way.
        source: The layers.
    """
    shape = fast.shape
    ways = [int(k // shape.num_meshes < num_slow) for k in range(shape.num_stages)]
    runs = (*fast.runs, *slow.runs)
    if not all(
        math.isfinite(runs[way].loop_s[at]) for at, way in zip(fast.cuts, ways, strict=True)
    ):
        return None
    return pipeline_in_ways(shape, (*fast.ways, *slow.ways), runs, fast.cuts, tuple(ways), source)
