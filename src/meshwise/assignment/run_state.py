"""What the threads of the solver share, and how they divide their time."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.exact.highs import HighsEffort
from meshwise.assignment.instance import Instance
from meshwise.assignment.network import Network
from meshwise.assignment.options import SolverOptions
from meshwise.assignment.reductions.arrays import END
from meshwise.assignment.reductions.reduction import Reduction

# A turn is cut short if it takes longer.
_TURN_S = 0.1
# What a counted run may do: entries of matrices that it looks at, of which one takes about 5 ns,
# the entries that a try of the search counts as, and looks of HiGHS, 50 to 100 a second, at a small
# problem and at what is left of another one.  Together about a minute.  Source: measured on the
# problems of `tests/assignment`, 2 cores.
_ENTRIES, TRY_ENTRIES = 6e9, 6e4
LOOKS_AT_ONCE, LOOKS_AT_REST = 1000, 2000


def whole(cost: float) -> int:
    """Return a cost as a whole number; a very large one if it is infinite."""
    return round(cost) if math.isfinite(cost) else 2**62


class Turn:
    """How much to do before the clock is looked at again: from 1 up to `most`.

    Counted turns are a quarter of it, however long they take.
    """

    def __init__(self, most: int, *, is_counted: bool) -> None:
        self.most = most
        self.is_counted = is_counted
        self.count = max(1, most // 4) if is_counted else 1
        self.start = 0.0

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.is_counted:
            return
        if time.monotonic() - self.start > _TURN_S:
            self.count = max(1, self.count // 2)
        else:
            self.count = min(self.most, 2 * self.count)


@dataclass(slots=True)
class Shared:
    """What the threads know; changed under the lock only.

    Attributes:
        instance: The problem.
        options: How to solve it.
        seed: Seed of all random numbers.
        start: Moment at which the solver began, of `time.monotonic` in seconds.
        deadline: Moment at which it has to end; infinite for none.
        interrupt: Ends the search when the caller sets it.
        reduction: Reduction of the problem, once `is_reduced` is set.
        reducing: Tells the first reduction to end, see `ReductionWork.stop`.
        stop: Set to 1, tells kernels to end.
        news: Set when the calling thread should look.
        choice: Best choice of the reduced network.
        cost: Its cost.
        bound: Bound of the messages, for the search.
        proven: Bound in exact arithmetic.
        prices: Prices of memory at the best bound.
        suggested: Cost and choice of the cheapest that the prices led to since one was taken.
        num_nodes: Nodes that are left to decide.
        known: A choice of the problem itself, from the exact engine.
        entries: Entries of matrices that a counted run may still look at; infinite for others.
    """

    instance: Instance
    options: SolverOptions
    seed: int
    start: float
    deadline: float
    interrupt: threading.Event
    reduction: Reduction | None = None
    is_reduced: threading.Event = field(default_factory=threading.Event)
    reducing: NDArray[np.int8] = field(default_factory=lambda: np.zeros(1, np.int8))
    stop: NDArray[np.int8] = field(default_factory=lambda: np.zeros(1, np.int8))
    lock: threading.Lock = field(default_factory=threading.Lock)
    news: threading.Event = field(default_factory=threading.Event)
    choice: NDArray[np.int64] | None = None
    cost: float = math.inf
    bound: float = 0.0
    proven: int = 0
    prices: NDArray[np.float64] | None = None
    suggested: tuple[float, NDArray[np.int64] | None] = (math.inf, None)
    num_nodes: int = 0
    known: tuple[int, ...] | None = None
    entries: float = math.inf
    is_over: bool = False
    is_impossible: bool = False
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.num_nodes = self.instance.num_nodes
        if self.options.counted:
            self.entries = _ENTRIES

    @property
    def network(self) -> Network:
        """Return what the problem was reduced to."""
        assert self.reduction is not None
        return self.reduction.network

    def offer(self, choice: NDArray[np.int64]) -> None:
        """Take a choice of the network if it is better."""
        cost = cost_of(self.network, choice)
        room = room_left(self.network, choice)
        with self.lock:
            if cost < self.cost and (not len(room) or room.min() >= 0):
                self.cost, self.choice = cost, choice.copy()
                self.news.set()

    def take_suggested(self) -> NDArray[np.int64] | None:
        """Return the cheapest choice that the prices led to since the last call; None for none."""
        with self.lock:
            (_, choice), self.suggested = self.suggested, (math.inf, None)
        return choice

    def finish(self) -> None:
        """Tell all threads to end."""
        self.is_over = True
        self.stop[0] = 1
        self.reducing[0] = END
        self.is_reduced.set()
        self.news.set()

    def end(self) -> None:
        """Nothing is better than the best known, if there is one."""
        self.is_impossible = math.isinf(self.cost)
        self.proven = 0 if self.is_impossible else whole(self.cost)
        self.finish()

    def effort(self, looks: int) -> HighsEffort:
        """Return what HiGHS may do until the deadline.

        Args:
            looks: Times that it may look in a counted run.
        """
        return HighsEffort(
            seed=self.seed,
            looks=looks if self.options.counted else math.inf,
            deadline=self.deadline,
        )

    @property
    def is_late(self) -> bool:
        """Return whether the time limit is reached."""
        return time.monotonic() >= self.deadline

    @property
    def must_stop(self) -> bool:
        """Return whether the problem is solved, or time or counted work is over."""
        return self.is_over or self.entries <= 0 or self.is_late
