"""Flows that wait for one another, on the network cards of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwise.errors import ProgramError
from meshwise.simulate.engine import run_streams
from meshwise.simulate.kernels.events import Messages
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.streams import Streams, Transfers, lists, messages_of


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
    run = run_streams(*_streams(flows), hosts, np.zeros(len(flows), np.int64))
    count = len(flows)
    return FlowTimes(
        start_s=tuple(run.transfer_start_s[:count].tolist()),
        end_s=tuple(run.transfer_end_s[:count].tolist()),
    )


def _streams(flows: Sequence[DependentFlow]) -> tuple[Streams, Transfers, Messages]:
    """Return flows as what meshes send: one mesh a flow.

    Its first action waits for those before, and makes the flow; the second waits for the flow, and
    tells those after.
    """
    count = len(flows)
    waits: list[list[int]] = [[] for _ in range(2 * count)]
    makes: list[list[int]] = [[] for _ in range(2 * count)]
    source, destination, kind = list(range(count)), list(range(count)), list(range(count))
    for number, (_, others) in enumerate(flows):
        makes[2 * number].append(number)
        waits[2 * number + 1].append(number)
        for other in sorted(set(others)):
            makes[2 * other + 1].append(len(kind))
            waits[2 * number].append(len(kind))
            source.append(other)
            destination.append(number)
            kind.append(count)
    no_time, nothing = np.zeros(2 * count), np.zeros(2 * count, np.int64)
    first = np.arange(0, 2 * count + 1, 2)
    streams = Streams(first, no_time, nothing, nothing, *lists(waits), *lists(makes))
    transfers = Transfers(*(np.array(column, np.int64) for column in (source, destination, kind)))
    return streams, transfers, messages_of([*(([flow], False) for flow, _ in flows), ([], False)])
