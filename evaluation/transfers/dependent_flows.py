"""Flows that wait for one another, on the network cards of hosts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.errors import ProgramError
from meshwise.simulate.actions import Flow, HostLinks
from meshwise.simulate.network import SharedNetwork

# Kinds of events: a flow has ended, or its latency is over.
_END, _LATENCY = range(2)


class DependentFlow(NamedTuple):
    """A flow that begins as soon as others have ended.

    Attributes:
        flow: What moves.
        waits: Numbers of flows, all before this one.
    """

    flow: Flow
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTimes:
    """When flows began and ended.

    Attributes:
        start_s: For each flow.
        end_s: For each flow.
    """

    start_s: tuple[float, ...]
    end_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """When the last one ended."""
        return max(self.end_s, default=0.0)


def run_flows(flows: Sequence[DependentFlow], hosts: Sequence[HostLinks]) -> FlowTimes:
    """Simulate.

    Args:
        flows: In an order in which none waits for a later one.
        hosts: Links of each host.

    Raises:
        ProgramError: a flow waits for itself or a later one, or is of a host that is not there.
        ClusterError: a bandwidth is not a finite number above 0.
    """
    for number, (flow, waits) in enumerate(flows):
        for other in waits:
            if not 0 <= other < number:
                raise ProgramError(f"flow {number} waits for flow {other}, which is not before it")
        for host in (flow.source, flow.destination):
            if not 0 <= host < len(hosts):
                raise ProgramError(f"flow {number} is of host {host}; there are {len(hosts)}")
    return _Simulation(flows, hosts).run()


class _Simulation:
    """State of one simulation."""

    def __init__(self, flows: Sequence[DependentFlow], hosts: Sequence[HostLinks]) -> None:
        self.flows = flows
        self.network = SharedNetwork(hosts)
        self.number_of: list[int] = []
        self.events: list[tuple[float, int, int, int]] = []
        self.open_waits = [len(set(waits)) for _, waits in flows]
        self.waiting: list[list[int]] = [[] for _ in flows]
        for number, (_, waits) in enumerate(flows):
            for other in sorted(set(waits)):
                self.waiting[other].append(number)
        self.start_s = [0.0] * len(flows)
        self.end_s = [0.0] * len(flows)

    def run(self) -> FlowTimes:
        """Take event after event until none is left."""
        self.begin([n for n, count in enumerate(self.open_waits) if not count], 0.0)
        self.settle(0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, kind, item, version = heapq.heappop(self.events)
                if kind == _LATENCY:
                    self.move(item, now)
                elif self.network.is_current(item, version):
                    self.network.end(item)
                    self.finish(self.number_of[item], now)
            self.settle(now)
        return FlowTimes(start_s=tuple(self.start_s), end_s=tuple(self.end_s))

    def begin(self, numbers: Sequence[int], now: float) -> None:
        """Let flows begin."""
        for number in numbers:
            self.start_s[number] = now
            latency_s = self.flows[number].flow.latency_s
            if latency_s > 0:
                heapq.heappush(self.events, (now + latency_s, _LATENCY, number, 0))
            else:
                self.move(number, now)

    def move(self, number: int, now: float) -> None:
        """Bytes begin to move."""
        flow = self.flows[number].flow
        if flow.num_bytes > 0:
            self.network.begin(flow, now)
            self.number_of.append(number)
        else:
            self.finish(number, now)

    def finish(self, number: int, now: float) -> None:
        """A flow has ended; others may begin."""
        self.end_s[number] = now
        ready: list[int] = []
        for other in self.waiting[number]:
            self.open_waits[other] -= 1
            if not self.open_waits[other]:
                ready.append(other)
        self.begin(ready, now)

    def settle(self, now: float) -> None:
        """Ends of flows whose rates changed."""
        for time_s, flow, version in self.network.settle(now):
            heapq.heappush(self.events, (time_s, _END, flow, version))
