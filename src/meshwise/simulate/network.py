"""Flows that share network cards: each gets its max-min fair share, as a fluid.

Every host has three ports: what its card sends, what it receives, and the links inside.  A flow
between hosts goes through the sender's first and the receiver's second port, a flow within a host
through the third only.  Rates change only when a flow begins or ends, and only those of flows that
share a port with it, directly or through others.

Source: docs/facts.md section 3 (one full-duplex card a host; links between hosts do not disturb
each other).  Max-min fairness: Bertsekas and Gallager, "Data networks", section 6.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwise.errors import ClusterError
from meshwise.simulate.actions import Flow, HostLinks

# A flow with less than this share of its bytes left has ended: the rest is rounding.
_ROUNDING = 1e-9


class Finish(NamedTuple):
    """When a flow will end if no rate changes before; else its version will have changed."""

    time_s: float
    flow: int
    version: int


def fair_rates(
    paths: Sequence[Sequence[int]], limits: Sequence[float], capacities: Sequence[float]
) -> list[float]:
    """Return rates with which no flow can get more without taking from one that has no more.

    All rates grow together; when a port is full, or a flow at its limit, those flows are fixed.

    Args:
        paths: For each flow its ports.
        limits: For each flow what it cannot exceed, in bytes/s.
        capacities: For each port its bytes/s.

    Returns:
        For each flow its bytes/s.
    """
    if len(paths) == 1:
        return [min(limits[0], *(capacities[p] for p in paths[0]))]
    members: dict[int, list[int]] = {}
    for flow, ports in enumerate(paths):
        for port in ports:
            members.setdefault(port, []).append(flow)
    left = {port: capacities[port] for port in members}
    count = {port: len(flows) for port, flows in members.items()}
    rates = [-1.0] * len(paths)
    by_limit = sorted(range(len(paths)), key=lambda flow: -limits[flow])
    while count:
        share, full = min((left[port] / count[port], port) for port in count)
        while by_limit and rates[by_limit[-1]] >= 0:
            by_limit.pop()
        lowest = limits[by_limit[-1]]
        fixed = [by_limit[-1]] if lowest < share else members[full]
        for flow in fixed:
            if rates[flow] >= 0:
                continue
            rates[flow] = min(lowest, share)
            for port in paths[flow]:
                left[port] = max(left[port] - rates[flow], 0.0)
                count[port] -= 1
                if not count[port]:
                    del count[port]
    return rates


class SharedNetwork:
    """Active flows and their rates.

    Raises:
        ClusterError: A bandwidth is not a finite number above 0.
    """

    __slots__ = (
        "_at_port",
        "_capacities",
        "_changed",
        "_limits",
        "_paths",
        "_rates",
        "_remaining",
        "_since",
        "_tiny",
        "_versions",
    )

    def __init__(self, hosts: Sequence[HostLinks]) -> None:
        self._capacities: list[float] = []
        for host, links in enumerate(hosts):
            for rate in (links.nic_bytes_per_s, links.nic_bytes_per_s, links.link_bytes_per_s):
                if not (rate > 0 and math.isfinite(rate)):
                    raise ClusterError(f"host {host} has a bandwidth of {rate} bytes/s")
                self._capacities.append(rate)
        # Flows by port as keys of a dict: in the order in which they began.
        self._at_port: list[dict[int, None]] = [{} for _ in self._capacities]
        self._changed: dict[int, None] = {}
        self._paths: list[tuple[int, ...]] = []
        self._limits: list[float] = []
        self._remaining: list[float] = []
        self._tiny: list[float] = []
        self._rates: list[float] = []
        self._since: list[float] = []
        self._versions: list[int] = []

    def begin(self, flow: Flow, now_s: float) -> int:
        """Let a flow begin; its rate is known after `settle`.  Returns its number."""
        if flow.source == flow.destination:
            path = (3 * flow.source + 2,)
        else:
            path = (3 * flow.source, 3 * flow.destination + 1)
        number = len(self._paths)
        self._paths.append(path)
        self._limits.append(flow.limit_bytes_per_s)
        self._remaining.append(flow.num_bytes)
        self._tiny.append(flow.num_bytes * _ROUNDING)
        self._rates.append(0.0)
        self._since.append(now_s)
        self._versions.append(0)
        for port in path:
            self._at_port[port][number] = None
            self._changed[port] = None
        return number

    def is_current(self, number: int, version: int) -> bool:
        """Return whether a `Finish` still holds."""
        return self._versions[number] == version

    def end(self, number: int) -> None:
        """Let a flow end; the others share what it had after `settle`."""
        self._versions[number] = -1
        for port in self._paths[number]:
            del self._at_port[port][number]
            if self._at_port[port]:
                self._changed[port] = None

    def settle(self, now_s: float) -> list[Finish]:
        """Return new ends of the flows whose rates change since the last time.

        Args:
            now_s: The time of the simulation, in seconds.
        """
        finishes: list[Finish] = []
        seen: set[int] = set()
        for port in self._changed:
            flows = self._connected(port, seen)
            if not flows:
                continue
            rates = fair_rates(
                [self._paths[f] for f in flows], [self._limits[f] for f in flows], self._capacities
            )
            for flow, rate in zip(flows, rates, strict=True):
                if rate != self._rates[flow]:
                    finishes.append(self._with_rate(flow, rate, now_s))
        self._changed.clear()
        return finishes

    def _connected(self, port: int, seen: set[int]) -> list[int]:
        """Return flows that share a port with those at `port`, directly or through others."""
        if port in seen:
            return []
        seen.add(port)
        ports = [port]
        flows: dict[int, None] = {}
        for at in ports:
            for flow in self._at_port[at]:
                if flow not in flows:
                    flows[flow] = None
                    for other in self._paths[flow]:
                        if other not in seen:
                            seen.add(other)
                            ports.append(other)
        return list(flows)

    def _with_rate(self, flow: int, rate: float, now_s: float) -> Finish:
        remaining = self._remaining[flow] - self._rates[flow] * (now_s - self._since[flow])
        if remaining <= self._tiny[flow]:
            remaining = 0.0
        self._remaining[flow] = remaining
        self._rates[flow] = rate
        self._since[flow] = now_s
        self._versions[flow] += 1
        return Finish(now_s + remaining / rate, flow, self._versions[flow])
