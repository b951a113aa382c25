"""How fast arrays get from host to host, measured by the way by which steps send them.

In each round every host is with one other, so that n hosts take n - 1 rounds, and no card has
more to do than the pair that is measured.

Source of the rounds: the circle method for tournaments.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from meshwise.runtime.devices import Device
from meshwise.runtime.job.job import Job
from meshwise.runtime.transports.transport import Passage, Transport, key_of
from meshwise.units import MIB

_ECHOES = 9
_REPEATS = 3
_SMALL_BYTES = 2**12
_FIRST_BYTES = MIB
_MOST_BYTES = 256 * MIB
# What a large array takes.
_LARGE_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPoint:
    """Two hosts, and what passes between them.

    Attributes:
        first: The number of a host.
        second: The number of another one.
        latency_s: A small array there and back, by half; median.
        one_device_bytes_per_s: From one device to one other.
        one_way_bytes_per_s: From all devices at once.
        both_ways_bytes_per_s: From all devices of both at once, each way.
    """

    first: int
    second: int
    latency_s: float
    one_device_bytes_per_s: float
    one_way_bytes_per_s: float
    both_ways_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class AgreedClock:
    """A clock of a job: each reading waits for all processes and gives all the same time.

    Loops that adapt to it turn as often in each process.

    Attributes:
        job: The processes.
        start_s: When it was made, by the clock of this process.
    """

    job: Job
    start_s: float

    def __call__(self) -> float:
        """Return the seconds since it was made, the same in all processes."""
        mine = time.perf_counter() - self.start_s
        return max(map(float, self.job.exchange("a clock", repr(mine))))


def agreed_clock(job: Job) -> AgreedClock:
    """Return a clock of all processes of a job, which call this together."""
    job.exchange("the start of a clock", "")
    return AgreedClock(job, time.perf_counter())


def rounds(num_hosts: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs in which each host is with each other one once.

    Args:
        num_hosts: How many hosts.
    """
    if num_hosts < 2:
        return
    circle = [*range(num_hosts), *([-1] if num_hosts % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(min(p), max(p)) for p in pairs if min(p) >= 0]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def measured_pairs(
    job: Job,
    hosts: Sequence[Sequence[Device]],
    transport: Transport,
    report: Callable[[str], object] = lambda _: None,
) -> tuple[PairPoint, ...]:
    """Measure what passes between each two hosts of a job; all processes call it.

    Args:
        job: The processes.
        hosts: For each host its devices.
        transport: The way between processes.
        report: Is told what is measured.

    Raises:
        TransportError: nothing passes between two processes.
    """
    network = _Network(job, transport)
    found: list[PairPoint] = []
    for pairs in rounds(len(hosts)):
        names = ", ".join(f"{a} and {b}" for a, b in pairs)
        report(f"hosts {names}")
        found += _round(network, hosts, pairs)
    return tuple(sorted(found, key=lambda point: (point.first, point.second)))


def _round(
    network: _Network, hosts: Sequence[Sequence[Device]], pairs: Sequence[tuple[int, int]]
) -> Iterator[PairPoint]:
    heads = [(hosts[a][0], hosts[b][0]) for a, b in pairs]
    everyone = [list(zip(hosts[a], hosts[b], strict=True)) for a, b in pairs]
    back = [[(d, c) for c, d in ways] for ways in everyone]
    latencies = network.latencies_s(heads)
    one_device = network.rates([[way] for way in heads])
    one_way = network.rates(everyone)
    both = network.rates([there + here for there, here in zip(everyone, back, strict=True)])
    for n, (a, b) in enumerate(pairs):
        yield PairPoint(
            first=a,
            second=b,
            latency_s=latencies[n],
            one_device_bytes_per_s=one_device[n],
            one_way_bytes_per_s=one_way[n],
            both_ways_bytes_per_s=both[n] / 2,
        )


Way = tuple[Device, Device]


class _Network:
    """Sends arrays of a set size; all processes call the same."""

    def __init__(self, job: Job, transport: Transport) -> None:
        self._job, self._transport = job, transport
        self._count = itertools.count()

    def rates(self, groups: Sequence[Sequence[Way]]) -> list[float]:
        """Return the bytes a second of each group of ways; all groups send at once."""
        ways = [way for group in groups for way in group]
        num_bytes = _FIRST_BYTES
        self._seconds(ways, num_bytes)  # It connects the devices, which may take seconds.
        slowest_s = max(self._seconds(ways, num_bytes))
        num_bytes = max(num_bytes, min(_MOST_BYTES, int(num_bytes * _LARGE_S / slowest_s)))
        runs = [self._seconds(ways, num_bytes) for _ in range(_REPEATS)]
        found: list[float] = []
        first = 0
        for group in groups:
            last = first + len(group)
            seconds = statistics.median(max(run[first:last]) for run in runs)
            found.append(len(group) * num_bytes / seconds)
            first = last
        return found

    def latencies_s(self, ways: Sequence[Way]) -> list[float]:
        """Return half of the time of a small array there and back, for each way."""
        runs = [self._echoes_s(ways) for _ in range(_ECHOES)]
        return [statistics.median(times) for times in zip(*runs, strict=True)]

    def _seconds(self, ways: Sequence[Way], num_bytes: int) -> list[float]:
        """Return for each way the seconds of an array; all begin together."""
        given = self._given(ways, num_bytes)
        self._job.exchange("a transfer", "")
        start = time.perf_counter()
        arrived = self._pass(ways, given, num_bytes)
        times: dict[int, float] = {}
        for n, array in enumerate(arrived):
            if array is not None:
                jax.block_until_ready(array)
                times[n] = time.perf_counter() - start
        return self._told(times, len(ways))

    def _echoes_s(self, ways: Sequence[Way]) -> list[float]:
        given = self._given(ways, _SMALL_BYTES)
        self._job.exchange("an echo", "")
        start = time.perf_counter()
        there = self._pass(ways, given, _SMALL_BYTES)
        jax.block_until_ready([x for x in there if x is not None])
        back = self._pass([(b, a) for a, b in ways], there, _SMALL_BYTES)
        times: dict[int, float] = {}
        for n, array in enumerate(back):
            if array is not None:
                jax.block_until_ready(array)
                times[n] = (time.perf_counter() - start) / 2
        return self._told(times, len(ways))

    def _given(self, ways: Sequence[Way], num_bytes: int) -> list[jax.Array | None]:
        own = self._transport.process
        given = [
            jax.device_put(np.zeros(num_bytes // 4, np.float32), a)
            if a.process_index == own
            else None
            for a, _ in ways
        ]
        jax.block_until_ready([x for x in given if x is not None])
        return given

    def _pass(
        self, ways: Sequence[Way], given: Sequence[jax.Array | None], num_bytes: int
    ) -> list[jax.Array | None]:
        """Send; for each way what arrives in this process."""
        label = f"measured array {next(self._count)}"
        passages = [
            Passage(
                key=key_of(label, n, num_bytes),
                shape=(num_bytes // 4,),
                dtype=jnp.dtype(jnp.float32),
                source=a,
                destination=b,
                value=given[n],
            )
            for n, (a, b) in enumerate(ways)
        ]
        own = self._transport.process
        mine = [
            n
            for n, (a, b) in enumerate(ways)
            if self._transport.is_collective or own in (a.process_index, b.process_index)
        ]
        found: list[jax.Array | None] = [None] * len(ways)
        arrived = self._transport.pass_all([passages[n] for n in mine], label)
        for n, array in zip(mine, arrived, strict=True):
            found[n] = array
        return found

    def _told(self, times: dict[int, float], count: int) -> list[float]:
        """Return the times of all ways, each from the process that has it."""
        found: dict[int, float] = {}
        for text in self._job.exchange("the seconds of transfers", json.dumps(times)):
            found.update((int(n), seconds) for n, seconds in json.loads(text).items())
        return [found[n] for n in range(count)]
