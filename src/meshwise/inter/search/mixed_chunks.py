"""Pipelines of two ways in one, so that a mesh is as full as it may be.

At one price of memory all stages hold much, or all hold little.  Between two prices there may be no
plan, so that a pipeline that fits leaves memory unused.  Then, on each mesh, the fewest stages that
make it fit are planned in the way that holds less: the first ones, which have most in flight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.chunked_pipeline import ChunkedPipeline, pipeline_in_ways

# Share of a step: if two ways save less, one way is kept.
_WORTH = 1e-3


def best_mixed(
    planned: Sequence[ChunkedPipeline],
    memory_bytes: float,
    source: LayerSource,
    below_s: float = math.inf,
) -> ChunkedPipeline | None:
    """Return the fastest pipeline of two ways that fits; None if none beats those of one.

    Its stages are not equal, and the closed form of a step is for equal stages, so that by
    simulation it may be the slower one.

    Args:
        planned: Pipelines of one shape, each planned in one way.
        memory_bytes: What a device may hold.
        source: The layers.
        below_s: Seconds of a step that it must beat, too.
    """
    small = [made for made in planned if made.peak_bytes <= memory_bytes]
    large = [made for made in planned if made.peak_bytes > memory_bytes]
    fastest_s = min((made.step_s for made in small), default=math.inf)
    worth_s = min(fastest_s * (1 - _WORTH), below_s)
    best: ChunkedPipeline | None = None
    pairs = itertools.product(large, small)
    for about_s, fast, slow in sorted(
        ((_between_s(*pair, memory_bytes), *pair) for pair in pairs), key=lambda each: each[0]
    ):
        if about_s >= worth_s:
            break
        made = _fullest(fast, slow, memory_bytes, source)
        if made is not None and made.step_s < worth_s:
            best, worth_s = made, made.step_s
    return best


def _between_s(fast: ChunkedPipeline, slow: ChunkedPipeline, memory_bytes: float) -> float:
    """Return about what a step takes if a mesh is full, by a line between the two."""
    share = (fast.peak_bytes - memory_bytes) / (fast.peak_bytes - slow.peak_bytes)
    return fast.step_s + share * (slow.step_s - fast.step_s)


def _fullest(
    fast: ChunkedPipeline, slow: ChunkedPipeline, memory_bytes: float, source: LayerSource
) -> ChunkedPipeline | None:
    """Return the pipeline with the fewest stages of the slow way that fits; None if none does."""
    found: ChunkedPipeline | None = None
    low, high = 0, fast.shape.schedule.chunks
    while high - low > 1:
        middle = (low + high) // 2
        made = _mixed(fast, slow, middle, source)
        if made is None or made.peak_bytes <= memory_bytes:
            # With more stages of the slow way no unknown cost becomes known.
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
