"""Depth-first search for the best senders and order, with pruning.

A branch adds a job from a sender, in the order of starts.  It is cut where some ports have more
left to do than would be better than what is known: a receiving port all of its jobs, the sending
ports of a set of hosts together all jobs that only they can send.

Source: AlpaComm section 3.2 (docs/facts.md section 3), which bounds its search by seconds.  Here it
is nodes, so that equal inputs give equal plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.resharding.cross_mesh.ordering import (
    Job,
    Ports,
    Timed,
    in_order,
    load_balanced,
    makespan_s,
)

MAX_NODES = 20_000
# Beyond so many jobs nothing is searched: the first branches alone would take all nodes.
# Source: AlpaComm section 3.2 has it good up to 20.
MAX_JOBS = 64
# Two times are one if they differ by less than this part.
_SAME = 1e-12


class FoundOrder(NamedTuple):
    """What a search found.

    Attributes:
        schedule: The best one seen.
        is_best: Whether nothing is better.
    """

    schedule: tuple[Timed, ...]
    is_best: bool


def depth_first(
    jobs: Sequence[Job],
    max_nodes: int = MAX_NODES,
    incumbent: Sequence[Timed] | None = None,
) -> FoundOrder:
    """Return the best schedule that is found in so many nodes; of many jobs the known one.

    Args:
        jobs: All jobs.
        max_nodes: Branches that are looked at, at most.
        incumbent: A schedule that is known; load balance only by default.
    """
    known = load_balanced(jobs) if incumbent is None else incumbent
    if len(jobs) > MAX_JOBS:
        return FoundOrder(tuple(known), False)
    search = _Search(jobs, max_nodes, known)
    if jobs:
        search.descend((), Ports(), frozenset(range(len(jobs))), 0.0)
    best = search.best if search.order is None else in_order(jobs, search.order)
    return FoundOrder(tuple(best), search.nodes <= max_nodes)


def least_s(jobs: Sequence[Job]) -> float:
    """Return what no schedule is below: the work of the busiest ports."""
    return _Search(jobs, 0, ()).bound_s(Ports(), frozenset(range(len(jobs))))


class _Search:
    """State of one search."""

    def __init__(self, jobs: Sequence[Job], max_nodes: int, best: Sequence[Timed]) -> None:
        self.jobs = jobs
        self.max_nodes = max_nodes
        self.nodes = 0
        self.best = best
        self.best_s = makespan_s(best)
        self.order: tuple[tuple[int, int], ...] | None = None
        self.sender_sets = sorted({job.senders for job in jobs})
        self.receivers = sorted({host for job in jobs for host in job.receivers})

    def descend(
        self,
        order: tuple[tuple[int, int], ...],
        ports: Ports,
        left: frozenset[int],
        latest_start_s: float,
    ) -> None:
        """Try all next jobs.

        Args:
            order: What was decided.
            ports: What it keeps busy.
            left: Other jobs.
            latest_start_s: Of what was decided; no job starts before it.
        """
        if not left:
            end_s = max((*ports.sending.values(), *ports.receiving.values()))
            if end_s < self.best_s:
                self.best_s, self.order = end_s, order
            return
        if self.bound_s(ports, left) >= self.best_s * (1 - _SAME):
            return
        choices: list[tuple[float, float, int, int]] = []
        seen: set[Job] = set()
        for n in sorted(left):
            job = self.jobs[n]
            if job in seen:
                continue
            seen.add(job)
            for sender in job.senders:
                start_s = ports.start_s(job, sender)
                if start_s >= latest_start_s * (1 - _SAME):
                    choices.append((start_s, -job.duration_s, n, sender))
        for start_s, _, n, sender in sorted(choices):
            self.nodes += 1
            if self.nodes > self.max_nodes:
                return
            after = Ports()
            after.sending, after.receiving = dict(ports.sending), dict(ports.receiving)
            after.add(n, self.jobs[n], sender)
            self.descend((*order, (n, sender)), after, left - {n}, start_s)

    def bound_s(self, ports: Ports, left: frozenset[int]) -> float:
        """Return what the makespan is at least."""
        jobs = [self.jobs[n] for n in left]
        found = max((*ports.sending.values(), *ports.receiving.values()), default=0.0)
        for host in self.receivers:
            work = math.fsum(job.duration_s for job in jobs if host in job.receivers)
            found = max(found, ports.receiving.get(host, 0.0) + work)
        for hosts in self.sender_sets:
            work = math.fsum(job.duration_s for job in jobs if set(job.senders) <= set(hosts))
            if work:
                free = math.fsum(ports.sending.get(host, 0.0) for host in hosts)
                found = max(found, (free + work) / len(hosts))
        return found
