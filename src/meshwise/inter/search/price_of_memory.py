"""How dear memory must be for one pipeline to fit, and no dearer.

All layers of the pipeline are planned at one price.  At a higher price they hold less, and take
longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from meshwise.inter.search.chunked_pipeline import ChunkedPipeline
from meshwise.inter.search.search_space import PRICES

# Each is twice the one before, but for the first.  At much higher prices time counts for nothing
# beside memory, and plans are no smaller.
_PRICES = (PRICES[0], *(PRICES[-1] * 2.0**k for k in range(-7, 13)))
_LAST = len(_PRICES) - 1
# At which most pipelines fit that fit at all.
_MIDDLE = _PRICES.index(PRICES[-1])
# A lower price is looked for if a step may become faster by more than this part.
_WORTH = 1e-3


def fitting(
    planned: Callable[[float], ChunkedPipeline | None],
    memory_bytes: float,
    below_s: float = math.inf,
) -> ChunkedPipeline | None:
    """Return a pipeline at about the least price at which it fits.

    Args:
        planned: Plans it at a price of memory, in steps for all that a device has; None if it
            cannot.
        memory_bytes: What a device may hold.
        below_s: Seconds of a step; what takes no less by its bound is not looked for.

    Returns:
        The fastest of those planned that fit; None if none does, or all that do take too long.
    """
    known: dict[int, ChunkedPipeline | None] = {}

    def at(n: int) -> ChunkedPipeline | None:
        if n not in known:
            known[n] = planned(_PRICES[n])
        return known[n]

    def fits(n: int) -> bool:
        made = at(n)
        return made is not None and made.peak_bytes <= memory_bytes

    def is_slow(n: int) -> bool:
        made = at(n)
        return made is not None and made.least_s >= below_s

    low, high = 0, 0 if at(0) is None or is_slow(0) or fits(0) else _MIDDLE
    if not fits(high) and not is_slow(high) and high > 0 and fits(_LAST):
        step = 1
        while not fits(high) and not is_slow(high):
            low, high, step = high, min(high + step, _LAST), 2 * step
    while high - low > 1 and fits(high) and not is_slow(low) and _is_worth(at(low), at(high)):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    found = (m for m in known.values() if m is not None and m.peak_bytes <= memory_bytes)
    fast = (made for made in found if made.least_s < below_s)
    return min(fast, key=lambda made: made.time.total_s, default=None)


def _is_worth(cheap: ChunkedPipeline | None, dear: ChunkedPipeline | None) -> bool:
    """Return whether a price between two others may give a clearly faster pipeline."""
    if cheap is None or dear is None:
        return False
    return dear.time.total_s > cheap.time.total_s * (1 + _WORTH)
