"""Entries of layers are looked at by several threads at once.

Most of the time goes to kernels, which do not hold Python's lock.  What is seen is noted in order,
by one thread, so that nothing depends on which one was first.  Looks of the threads are short; the
solver works in the calling thread, where Ctrl-C ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from meshwise.inter.layer_cost.layer_record import Place
from meshwise.inter.layer_cost.state_costs import ConditionedLayer
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
        """End the threads: drop what has not started, wait for the rest."""
        self._pool.shutdown(cancel_futures=True)

    def sharpen(self, entries: Sequence[tuple[ConditionedLayer, Place]]) -> None:
        """Look at entries more closely.

        Args:
            entries: Layers and the states of their cuts, each pair once.
        """
        for layer, place in entries:
            layer.prepare(place)
        looks = [
            None if layer.is_for_the_solver(place) else self._pool.submit(layer.look, place)
            for layer, place in entries
        ]
        seen = [
            layer.look(place) if look is None else look.result()
            for (layer, place), look in zip(entries, looks, strict=True)
        ]
        for (layer, place), found in zip(entries, seen, strict=True):
            layer.note(place, found)
