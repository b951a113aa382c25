"""Entries of layers are looked at by several threads at once.

Most of the time goes to kernels, which do not hold Python's lock.  What is seen is noted in order,
by one thread, so that nothing depends on which one was first.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from meshwise.inter.layer_cost.state_costs import ConditionedLayer, Look, Place
from meshwise.system.cores import usable_cores

# More would wait for Python's lock.
_MOST = 4


class LookingThreads:
    """Threads that look at entries; they end with the `with` block."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._pool = ThreadPoolExecutor(min(usable_cores(), _MOST))

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the threads; what nobody has begun is left out."""
        self._pool.shutdown(cancel_futures=True)

    def sharpen(self, entries: Sequence[tuple[ConditionedLayer, Place]]) -> None:
        """Look at entries more closely.

        Args:
            entries: Layers and the states of their cuts, each pair once.
        """
        looks = list(self._pool.map(_look, entries))
        for (layer, place), seen in zip(entries, looks, strict=True):
            layer.note(place, seen)


def _look(entry: tuple[ConditionedLayer, Place]) -> Look:
    layer, place = entry
    return layer.look(place)
