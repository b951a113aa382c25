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
from meshwise.assignment.search.repair import Repair
from meshwise.assignment.search.room import Placed, room_of

_TRIES_A_TURN = 200
_TRIES_A_CYCLE = 20_000
_LARGEST_PART = 200
_LARGEST_MENDED = 60
# Share of the tries that free two parts which compete for memory.
_RIVALS = 0.5


class Primal:
    """Mends what the costs suggest until a solution is known, then searches around the best one.

    Args:
        shared: What is known; its problem is reduced.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.rng = np.random.default_rng(shared.seed)
        self.pace = Turn(
            tries_for(shared.network, _TRIES_A_TURN), is_counted=shared.options.counted
        )
        self.repair: Repair | None = None
        self.is_mended = False
        self.work = scratch_for(shared.network, shared.stop)
        self.tries = self.cycle = 0
        self.choice: NDArray[np.int64] = np.zeros(0, np.int64)
        self.cost = math.inf
        self.room = room_of(shared.network.capacity)

    def turn(self) -> None:
        """Go on for a moment."""
        self.shared.entries -= self.pace.count * TRY_ENTRIES
        if self.shared.choice is not None:
            self._improve()
        elif not self.is_mended:
            self._mend()
        elif not self.shared.options.counted:
            # The other thread goes on.
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
        shared, net = self.shared, self.shared.network
        if shared.cost < self.cost or self.tries // _TRIES_A_CYCLE > self.cycle:
            self.cycle = self.tries // _TRIES_A_CYCLE
            with shared.lock:
                assert shared.choice is not None
                self.choice, self.cost = shared.choice.copy(), shared.cost
            self.room = room_of(room_left(net, self.choice))
        if shared.prices is not None:
            self.work.price[1:] = np.cumsum(shared.prices)
        with self.pace:
            tries = Tries(self.pace.count, _LARGEST_PART, self._heat(), _RIVALS)
            placed = Placed(self.choice, self.room)
            self.cost -= improve(tries, net, placed, self.work, self.rng)
        self.tries += self.pace.count
        if self.cost < shared.cost:
            shared.offer(self.choice)
            self.cost = cost_of(net, self.choice)

    def _heat(self) -> float:
        """Return 0 in the first cycle; later ones begin hot and cool down."""
        if self.tries < _TRIES_A_CYCLE:
            return 0.0
        left = 1.0 - (self.tries % _TRIES_A_CYCLE) / _TRIES_A_CYCLE
        spread = max(self.cost - self.shared.bound, 0.0)
        return spread / max(len(self.shared.network.size), 1) * left**2
