"""A tensor from one mesh to another: who sends which box when, by a strategy and an algorithm.

Source: AlpaComm section 3 (docs/facts.md section 3); dividing boxes is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.errors import ClusterError
from meshwise.resharding.cross_mesh.depth_first import depth_first, least_s
from meshwise.resharding.cross_mesh.division import Part, is_partition, open_shop, shares
from meshwise.resharding.cross_mesh.host_tasks import HostTask
from meshwise.resharding.cross_mesh.ordering import Job, Timed, greedy, in_order, load_balanced
from meshwise.resharding.cross_mesh.ordering import naive as in_given_order
from meshwise.resharding.cross_mesh.strategies import BROADCAST, NUM_CHUNKS, received_bytes, seconds

NAIVE, BALANCED, DEPTH_FIRST, GREEDY = "naive", "load balance only", "depth first", "greedy"
DIVIDED, WHOLE, BEST = "divided", "best of whole boxes", "best"
ALGORITHMS = (NAIVE, BALANCED, DEPTH_FIRST, GREEDY, DIVIDED, WHOLE, BEST)
# Where receivers overlap, boxes are divided into so many parts of the least possible makespan.
_PARTS_OF_BOUND = 32
# Two times are one if they differ by less than this factor.
_SAME = 1 + 1e-12


class Sent(NamedTuple):
    """A box, or a part of one, on its way.

    Attributes:
        task: Number of the box.
        sender: Host that sends it.
        first_byte: Where in the box it begins; parts of one box lie one behind the other.
        num_bytes: How much of it.
        start_s: When its first byte leaves.
        end_s: When its last byte has arrived everywhere.
    """

    task: int
    sender: int
    first_byte: float
    num_bytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossMeshPlan:
    """How a tensor crosses.

    Attributes:
        tasks: Its boxes.
        strategy: How each is sent, one of `strategies.STRATEGIES`.
        algorithm: What found senders and order.
        transfers: In the order in which they start on each host.
        chunk_bytes: For each box the bytes of a chunk, if it is broadcast.
        makespan_s: When the last one ends.
        bound_s: What no plan is below: bytes through the busiest network card.
    """

    tasks: tuple[HostTask, ...]
    strategy: str
    algorithm: str
    transfers: tuple[Sent, ...]
    chunk_bytes: tuple[float, ...]
    makespan_s: float
    bound_s: float


def bound_s(tasks: Sequence[HostTask], bytes_per_s: float) -> float:
    """Return the seconds of the busiest network card.

    Every host receives once what it needs; each box is sent once, by one of those that have it, who
    share the work as well as can be.

    Args:
        tasks: The boxes.
        bytes_per_s: Of a network card, in each direction.
    """
    return _most_bytes(tasks, shares(tasks)[1]) / bytes_per_s


def _most_bytes(tasks: Sequence[HostTask], most_sent: float) -> float:
    """Return the bytes of the busiest port."""
    return max((most_sent, *received_bytes(tasks).values()))


def cross_mesh_plan(
    tasks: Sequence[HostTask],
    bytes_per_s: float,
    strategy: str = BROADCAST,
    algorithm: str = BEST,
    chunk_bytes: float | None = None,
) -> CrossMeshPlan:
    """Choose senders and order.

    Args:
        tasks: The boxes.
        bytes_per_s: Of a network card, in each direction.
        strategy: One of `strategies.STRATEGIES`.
        algorithm: One of `ALGORITHMS`; "best" never ends later than any other.
        chunk_bytes: Bytes of a chunk of a broadcast; by default a hundredth of each box.

    Raises:
        ClusterError: the bandwidth is not a finite number above 0.
        ValueError: there is no such strategy or algorithm.
    """
    if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
        raise ClusterError(f"a network card has a bandwidth of {bytes_per_s} bytes/s")
    problem = _Problem(tuple(tasks), bytes_per_s, strategy, chunk_bytes)
    found = min(problem.schedules(algorithm), key=lambda plan: plan.makespan_s, default=None)
    if found is None:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    return found


class _Problem:
    """Boxes with a strategy."""

    def __init__(
        self,
        tasks: tuple[HostTask, ...],
        bytes_per_s: float,
        strategy: str,
        chunk_bytes: float | None,
    ) -> None:
        self.tasks, self.strategy = tasks, strategy
        self.rate = bytes_per_s
        self.chunk_bytes = tuple(
            task.num_bytes / NUM_CHUNKS if chunk_bytes is None else chunk_bytes for task in tasks
        )
        self.jobs = [
            Job(seconds(strategy, task, bytes_per_s, chunk), task.senders, task.receivers)
            for task, chunk in zip(tasks, self.chunk_bytes, strict=True)
        ]
        self.parts, most_sent = shares(tasks)
        self.bound_s = (
            max(most_sent, max(received_bytes(tasks).values(), default=0.0)) / bytes_per_s
        )
        self.least_s = least_s(self.jobs)

    def schedules(self, algorithm: str) -> list[CrossMeshPlan]:
        """Return what an algorithm chooses from."""
        match algorithm:
            case "naive":
                return [self._whole(algorithm, in_given_order(self.jobs))]
            case "load balance only":
                return [self._whole(algorithm, load_balanced(self.jobs))]
            case "greedy":
                return [self._whole(algorithm, greedy(self.jobs, enough_s=self.least_s))]
            case "depth first":
                return [self._whole(algorithm, depth_first(self.jobs).schedule)]
            case "divided":
                return [self._divided()]
            case "best of whole boxes":
                return self._searched(self._quick())
            case "best":
                # Division keeps ports busy; where they are already, boxes stay whole.
                quick = self._quick()
                if _least(quick).makespan_s > self.bound_s * _SAME:
                    quick.append(self._divided())
                return self._searched(quick)
            case _:
                return []

    def _quick(self) -> list[CrossMeshPlan]:
        """Return plans of whole boxes without a search."""
        found: list[CrossMeshPlan] = []
        for algorithm in (NAIVE, BALANCED, GREEDY):
            found += self.schedules(algorithm)
            if found[-1].makespan_s <= self.least_s:
                break
        return found

    def _searched(self, known: list[CrossMeshPlan]) -> list[CrossMeshPlan]:
        """Add one of a search, where whole boxes could be better than what is known."""
        if _least(known).makespan_s <= self.least_s * _SAME:
            return known
        whole = _least([plan for plan in known if plan.algorithm != DIVIDED])
        order = [Timed(t.task, t.sender, t.start_s, t.end_s) for t in whole.transfers]
        searched = depth_first(self.jobs, incumbent=order).schedule
        return [*known, self._whole(DEPTH_FIRST, searched)]

    def _whole(self, algorithm: str, schedule: Sequence[Timed]) -> CrossMeshPlan:
        parts = [Part(n, -1, task.num_bytes) for n, task in enumerate(self.tasks)]
        return self._plan(algorithm, parts, schedule)

    def _plan(
        self, algorithm: str, parts: Sequence[Part], schedule: Sequence[Timed]
    ) -> CrossMeshPlan:
        """Return the plan of a schedule whose jobs are parts of boxes."""
        transfers: list[Sent] = []
        done: dict[int, float] = {}
        for timed in schedule:
            task, _, num_bytes = parts[timed.job]
            first = done.get(task, 0.0)
            done[task] = first + num_bytes
            transfers.append(Sent(task, timed.sender, first, num_bytes, timed.start_s, timed.end_s))
        return CrossMeshPlan(
            tasks=self.tasks,
            strategy=self.strategy,
            algorithm=algorithm,
            transfers=tuple(transfers),
            chunk_bytes=self.chunk_bytes,
            makespan_s=max((t.end_s for t in transfers), default=0.0),
            bound_s=self.bound_s,
        )

    def _divided(self) -> CrossMeshPlan:
        parts: Sequence[Part] = self.parts
        if is_partition(self.tasks):
            parts = open_shop(self.tasks, parts)
            schedule = in_order(self._jobs(parts), enumerate(p.sender for p in parts))
        else:
            most = self.bound_s * self.rate / _PARTS_OF_BOUND
            parts = [smaller for part in parts for smaller in _cut(part, most)]
            schedule = greedy(self._jobs(parts))
        return self._plan(DIVIDED, parts, schedule)

    def _jobs(self, parts: Sequence[Part]) -> list[Job]:
        found: list[Job] = []
        for part in parts:
            whole = self.tasks[part.task]
            task = whole._replace(num_bytes=part.num_bytes)
            chunk_bytes = self.chunk_bytes[part.task]
            duration_s = seconds(self.strategy, task, self.rate, chunk_bytes)
            found.append(Job(duration_s, (part.sender,), whole.receivers))
        return found


def _least(plans: Sequence[CrossMeshPlan]) -> CrossMeshPlan:
    return min(plans, key=lambda plan: plan.makespan_s)


def _cut(part: Part, most: float) -> list[Part]:
    """Return equal parts of no more than so many bytes."""
    count = max(1, math.ceil(part.num_bytes / most))
    return [part._replace(num_bytes=part.num_bytes / count)] * count
