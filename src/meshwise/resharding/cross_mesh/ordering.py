"""Which host sends each box, and in which order: as jobs on the ports of hosts.

A job keeps the sending port of its sender and the receiving ports of its receivers for all of its
time, so jobs that share a port do not overlap.  The last one shall end as early as possible.  An
order and a choice of senders give starts: each job as soon as its ports have done all earlier ones.
Every best schedule is of that form, with its jobs in the order of their starts.

Source: AlpaComm section 3.2 and equations 1 to 3 (docs/facts.md section 3).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# So often the randomised greedy algorithm tries, less often where it looks at more jobs in all.
NUM_TRIES, MAX_JOBS_TRIED = 50, 5_000


class Job(NamedTuple):
    """One box to send.

    Attributes:
        duration_s: From its first byte to its last.
        senders: Hosts that may send it, ascending.
        receivers: Hosts that get it, ascending.
    """

    duration_s: float
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


class Timed(NamedTuple):
    """A job with its sender and its time.

    Attributes:
        job: Its number.
        sender: Host.
        start_s: When its first byte leaves.
        end_s: When its last byte has arrived.
    """

    job: int
    sender: int
    start_s: float
    end_s: float


def makespan_s(schedule: Iterable[Timed]) -> float:
    """Return when the last job ends."""
    return max((timed.end_s for timed in schedule), default=0.0)


class Ports:
    """The ports of hosts, and until when each is busy."""

    def __init__(self) -> None:
        """Let all be free."""
        self.sending: dict[int, float] = {}
        self.receiving: dict[int, float] = {}

    def start_s(self, job: Job, sender: int) -> float:
        """Return when a job could start."""
        latest = self.sending.get(sender, 0.0)
        for host in job.receivers:
            latest = max(latest, self.receiving.get(host, 0.0))
        return latest

    def add(self, number: int, job: Job, sender: int) -> Timed:
        """Let a job run as soon as it can."""
        start_s = self.start_s(job, sender)
        end_s = start_s + job.duration_s
        self.sending[sender] = end_s
        for host in job.receivers:
            self.receiving[host] = end_s
        return Timed(number, sender, start_s, end_s)


def in_order(jobs: Sequence[Job], order: Iterable[tuple[int, int]]) -> tuple[Timed, ...]:
    """Return the schedule of an order.

    Args:
        jobs: All jobs.
        order: Pairs (number of a job, its sender).
    """
    ports = Ports()
    return tuple(ports.add(number, jobs[number], sender) for number, sender in order)


def naive(jobs: Sequence[Job]) -> tuple[Timed, ...]:
    """Return jobs as they come, each from the first host that has it."""
    return in_order(jobs, ((n, job.senders[0]) for n, job in enumerate(jobs)))


def load_balanced(jobs: Sequence[Job]) -> tuple[Timed, ...]:
    """Return the longest jobs first, each from the host that has least to send so far."""
    load: dict[int, float] = {}
    order: list[tuple[int, int]] = []
    for n in sorted(range(len(jobs)), key=lambda n: (-jobs[n].duration_s, n)):
        sender = min(jobs[n].senders, key=lambda host: (load.get(host, 0.0), host))
        load[sender] = load.get(sender, 0.0) + jobs[n].duration_s
        order.append((n, sender))
    return in_order(jobs, order)


def greedy(
    jobs: Sequence[Job], tries: int = NUM_TRIES, seed: int = 0, enough_s: float = 0.0
) -> tuple[Timed, ...]:
    """Return set after set of jobs without a common port, each as large as it can be made.

    Jobs whose ports have most to do come first, the more at random the later the try.

    Args:
        jobs: All jobs.
        tries: How often the whole order is made at most; the best is kept.
        seed: Of the random numbers.
        enough_s: A makespan that ends the tries, as what none is below.
    """
    rng = random.Random(seed)
    tries = max(1, min(tries, MAX_JOBS_TRIED // max(len(jobs), 1)))
    best = _in_sets(jobs, rng, 0.0)
    for n in range(1, tries):
        if makespan_s(best) <= enough_s:
            break
        best = min(best, _in_sets(jobs, rng, n / (tries - 1)), key=makespan_s)
    return best


def _in_sets(jobs: Sequence[Job], rng: random.Random, noise: float) -> tuple[Timed, ...]:
    ports = Ports()
    left = set(range(len(jobs)))
    to_send, to_receive = _loads(jobs)
    found: list[Timed] = []
    while left:
        urgency = {n: _urgency(jobs[n], to_send, to_receive) for n in sorted(left)}
        ranked = sorted(urgency, key=lambda n: -urgency[n] * (1 + noise * rng.random()))
        sending: set[int] = set()
        receiving: set[int] = set()
        for n in ranked:
            job = jobs[n]
            free = [host for host in job.senders if host not in sending]
            if not free or not receiving.isdisjoint(job.receivers):
                continue
            sender = min(free, key=lambda host: (ports.start_s(jobs[n], host), to_send[host], host))
            sending.add(sender)
            receiving.update(job.receivers)
            for host in job.senders:
                to_send[host] -= job.duration_s / len(job.senders)
            for host in job.receivers:
                to_receive[host] -= job.duration_s
            left.remove(n)
            found.append(ports.add(n, job, sender))
    return tuple(found)


def _loads(jobs: Iterable[Job]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the seconds that each host sends, if senders share alike, and receives."""
    to_send: dict[int, float] = {}
    to_receive: dict[int, float] = {}
    for job in jobs:
        for host in job.senders:
            to_send[host] = to_send.get(host, 0.0) + job.duration_s / len(job.senders)
        for host in job.receivers:
            to_receive[host] = to_receive.get(host, 0.0) + job.duration_s
    return to_send, to_receive


def _urgency(job: Job, to_send: dict[int, float], to_receive: dict[int, float]) -> float:
    """Return what the busiest port that a job cannot do without has left to do."""
    return max(
        min(to_send[host] for host in job.senders), *(to_receive[host] for host in job.receivers)
    )
