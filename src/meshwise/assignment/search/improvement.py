"""The side that finds a solution and improves the best one, a turn at a time."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.run_state import TRY_ENTRIES, Shared, Turn
from meshwise.assignment.search.component import scratch_for
from meshwise.assignment.search.neighbourhood import Tries, improve, tries_for
from meshwise.assignment.search.recombination import recombined
from meshwise.assignment.search.repair import Repair
from meshwise.assignment.search.room import Placed, room_of

_TRIES_A_TURN = 200
_TRIES_A_LEG = 3000
_TRIES_A_CYCLE = 20_000
_LARGEST_MENDED = 60
# Choices from other starts that are kept.
_KEPT = 8


class Primal:
    """Mends what the costs suggest until a solution is known, then goes on in legs.

    One leg searches around the best choice, the next one around a choice that the prices suggest,
    even if it costs more: where many nodes must change together, small parts never lead away from
    the best choice.  Each leg of the second kind ends with a recombination.

    Args:
        shared: What is known; its problem is reduced.
        number: Number of this search, among those side by side; each has its own random numbers.
    """

    def __init__(self, shared: Shared, number: int = 0) -> None:
        self.shared = shared
        self.rng = np.random.default_rng((shared.seed, number) if number else shared.seed)
        self.pace = Turn(
            tries_for(shared.network, _TRIES_A_TURN), is_counted=shared.options.counted
        )
        self.repair: Repair | None = None
        self.is_mended = False
        self.work = scratch_for(shared.network, shared.stop)
        # Tries around the best choice, and what is left of this leg.
        self.tries = self.left = 0
        self.is_elsewhere = False
        self.choice: NDArray[np.int64] = np.zeros(0, np.int64)
        self.cost = math.inf
        self.room = room_of(shared.network.capacity)
        self.kept: list[tuple[float, NDArray[np.int64]]] = []

    def turn(self) -> None:
        """Go on for a moment."""
        self.shared.entries -= self.pace.count * TRY_ENTRIES
        if self.shared.choice is not None:
            self._improve()
        elif not self.is_mended:
            self._mend()
        elif not self.shared.options.counted:
            # Other threads go on.
            time.sleep(0.01)

    def _mend(self) -> None:
        if self.repair is None:
            self.repair = Repair.of(self.shared.network, self.shared.stop)
        if self.shared.prices is not None:
            self.repair.work.price[1:] = np.cumsum(self.shared.prices)
        with self.pace:
            self.is_mended = self.repair.run(self.pace.count, _LARGEST_MENDED, self.rng)
        if self.is_mended:
            self.shared.offer(self.repair.choice)

    def _improve(self) -> None:
        shared = self.shared
        if self.left <= 0:
            start = None if self.is_elsewhere else shared.take_suggested()
            self.is_elsewhere = start is not None
            self.left = _TRIES_A_LEG
            self._begin(start)
        if not self.is_elsewhere and shared.cost < self.cost:
            self._begin(None)
        self.work.price[1:] = np.cumsum(self._prices())
        with self.pace:
            tries = Tries(self.pace.count, heat=self._heat())
            placed = Placed(self.choice, self.room)
            self.cost -= improve(tries, shared.network, placed, self.work, self.rng)
        self.left -= self.pace.count
        if not self.is_elsewhere:
            self.tries += self.pace.count
        if self.cost < shared.cost:
            shared.offer(self.choice)
            self.cost = cost_of(shared.network, self.choice)
        if self.is_elsewhere and self.left <= 0:
            self._recombine()

    def _begin(self, choice: NDArray[np.int64] | None) -> None:
        """Go to a choice, to the best one for None."""
        net, best = self.shared.network, self.shared.choice
        assert best is not None
        self.choice = (best if choice is None else choice).copy()
        self.cost = cost_of(net, self.choice)
        self.room = room_of(room_left(net, self.choice))

    def _recombine(self) -> None:
        """Put the best choice, the one of this leg and those kept together."""
        shared, best = self.shared, self.shared.choice
        assert best is not None
        self.kept = sorted([*self.kept, (self.cost, self.choice.copy())], key=lambda k: k[0])
        choices = [best, self.choice, *(choice for _, choice in self.kept[:_KEPT])]
        del self.kept[_KEPT:]
        found, entries = recombined(shared.network, choices, self._prices(), self.rng, shared.stop)
        shared.entries -= entries
        if found is not None:
            shared.offer(found)

    def _prices(self) -> NDArray[np.float64]:
        prices = self.shared.prices
        return np.zeros(len(self.shared.network.capacity)) if prices is None else prices

    def _heat(self) -> float:
        """Return 0 in the first cycle and elsewhere; later cycles begin hot and cool down."""
        if self.is_elsewhere or self.tries < _TRIES_A_CYCLE:
            return 0.0
        left = 1.0 - (self.tries % _TRIES_A_CYCLE) / _TRIES_A_CYCLE
        spread = max(self.cost - self.shared.bound, 0.0)
        return spread / max(len(self.shared.network.size), 1) * left**2
