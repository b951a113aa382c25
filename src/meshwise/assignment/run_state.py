"""What the threads of the solver share, and how they divide their time."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.instance import Instance
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import END
from meshwise.assignment.reductions.reduction import Reduction

# A turn is cut short if it takes longer.
_TURN_S = 0.1


def whole(cost: float) -> int:
    """A cost as a whole number; a very large one if it is infinite."""
    return round(cost) if math.isfinite(cost) else 2**62


class Turn:
    """How much to do before the clock is looked at again: from 1 up to `most`.

    Fixed turns are a quarter of it, however long they take.
    """

    def __init__(self, most: int, *, is_fixed: bool = False) -> None:
        self.most = most
        self.is_fixed = is_fixed
        self.count = max(1, most // 4) if is_fixed else 1
        self.start = 0.0

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.is_fixed:
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
        deadline: Of `time.monotonic`.
        reduction: Of the problem, once `is_reduced` is set.
        reducing: Tells the first reduction to end, see `reducing.Work`.
        stop: Set to 1, tells kernels to end.
        news: Set when the calling thread should look.
        choice: Best one of the reduced network.
        cost: Its cost.
        bound: Of the messages, for the search.
        proven: In exact arithmetic.
        prices: Of memory, at the best bound.
        num_nodes: Nodes that are left to decide.
        known: A choice of the problem itself, from the exact engine.
        without: Ingredients that are left out.
        deterministic: Whether one thread does everything, in fixed turns.
        brief: Whether to end after the first try of a proof.
    """

    instance: Instance
    deadline: float
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
    num_nodes: int = 0
    known: tuple[int, ...] | None = None
    without: frozenset[str] = frozenset()
    deterministic: bool = False
    brief: bool = False
    interrupt: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False
    is_impossible: bool = False
    error: BaseException | None = None

    @property
    def network(self) -> Network:
        """What the problem was reduced to."""
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

    @property
    def must_stop(self) -> bool:
        """Whether the problem is solved or time is over."""
        return self.is_over or time.monotonic() >= self.deadline
