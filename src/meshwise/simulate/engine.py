"""The engine: streams of actions, transfers between them, one clock.

It knows neither schedules nor plans: each mesh runs its stream in order, each action as soon as
the messages that it waits for have arrived.  At one instant, ends come before starts, and starts of
blocking transfers before those of actions.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.errors import ProgramError
from meshwise.simulate.actions import Action, Flow, HostLinks, Transfer
from meshwise.simulate.check import check_streams
from meshwise.simulate.network import SharedNetwork

# Kinds of events.
_ACTION, _FLOW, _LATENCY = range(3)


class MemoryStep(NamedTuple):
    """Bytes in use from `time_s` on."""

    time_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """The times of everything that happened.

    Attributes:
        start_s: For each mesh the start of each action of its stream.
        end_s: For each mesh the end of each action of its stream.
        transfer_start_s: For each transfer its start; NaN if no action makes it.
        transfer_end_s: For each transfer when it arrived; NaN if no action makes it.
        memory: For each mesh its memory over time, the first step at 0.
        makespan_s: Seconds until the last action or transfer ended.
    """

    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    transfer_start_s: tuple[float, ...]
    transfer_end_s: tuple[float, ...]
    memory: tuple[tuple[MemoryStep, ...], ...]
    makespan_s: float


def run_streams(
    streams: Sequence[Sequence[Action]],
    transfers: Sequence[Transfer],
    hosts: Sequence[HostLinks],
    resident_bytes: Sequence[int] | None = None,
) -> EngineRun:
    """Simulate what meshes do and send.

    Args:
        streams: For each mesh its actions in order.
        transfers: Messages; `waits` and `makes` of actions are indices into them.
        hosts: Links of each host.
        resident_bytes: For each mesh its memory at the start; 0 by default.

    Raises:
        ProgramError: A deadlock, with who waits for what; a message that two actions make, or that
            leaves from or is waited for on another mesh than it says; a duration, a number of
            bytes or a limit that is negative or not a number; an index that does not exist.
        ClusterError: A bandwidth is not a finite number above 0.
    """
    check_streams(streams, transfers, len(hosts))
    resident = [0] * len(streams) if resident_bytes is None else list(resident_bytes)
    engine = _Engine(streams, transfers, SharedNetwork(hosts), resident)
    engine.run()
    return engine.result()


class _Engine:
    """State of one simulation."""

    def __init__(
        self,
        streams: Sequence[Sequence[Action]],
        transfers: Sequence[Transfer],
        network: SharedNetwork,
        resident: list[int],
    ) -> None:
        meshes = len(streams)
        self.streams = streams
        self.transfers = transfers
        self.network = network
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.num_events = 0
        self.starts: list[list[float]] = [[] for _ in streams]
        self.ends: list[list[float]] = [[] for _ in streams]
        self.transfer_start = [math.nan] * len(transfers)
        self.transfer_end = [math.nan] * len(transfers)
        self.arrived = [False] * len(transfers)
        self.flows_left = [len(t.flows) for t in transfers]
        # Flows that begin together after one latency: (transfer, flows).
        self.delayed: list[tuple[int, list[Flow]]] = []
        self.transfer_of_flow: list[int] = []
        self.computing = [False] * meshes
        # Blocking transfers that wait or run, for each mesh that they keep from computing.
        self.blocked = [0] * meshes
        self.pending: list[int] = []
        self.touched = set(range(meshes))
        self.in_use = resident
        self.change = [0] * meshes
        self.changed: list[int] = []
        self.memory = [[MemoryStep(0.0, num_bytes)] for num_bytes in resident]

    def run(self) -> None:
        """Take event after event until none is left."""
        self._start(0.0)
        heap = self.heap
        while heap:
            now = heap[0][0]
            while heap and heap[0][0] == now:
                _, _, kind, item, version = heapq.heappop(heap)
                if kind == _ACTION:
                    self._end_action(item, now)
                elif kind == _LATENCY:
                    self._begin_flows(*self.delayed[item], now)
                elif self.network.is_current(item, version):
                    self.network.end(item)
                    self._end_flow(self.transfer_of_flow[item], now)
            self._note_memory(now)
            self._start(now)
        if any(len(done) < len(s) for done, s in zip(self.ends, self.streams, strict=True)):
            raise ProgramError(self._deadlock())

    def result(self) -> EngineRun:
        """Return what happened."""
        last = [ends[-1] for ends in self.ends if ends]
        last += [end for end in self.transfer_end if not math.isnan(end)]
        return EngineRun(
            start_s=tuple(map(tuple, self.starts)),
            end_s=tuple(map(tuple, self.ends)),
            transfer_start_s=tuple(self.transfer_start),
            transfer_end_s=tuple(self.transfer_end),
            memory=tuple(map(tuple, self.memory)),
            makespan_s=max(last, default=0.0),
        )

    def _push(self, time_s: float, kind: int, item: int, version: int = 0) -> None:
        heapq.heappush(self.heap, (time_s, self.num_events, kind, item, version))
        self.num_events += 1

    # Starts.

    def _start(self, now: float) -> None:
        """Start whatever can start at this instant."""
        if self.pending:
            self.pending = [i for i in self.pending if not self._start_blocking(i, now)]
        if self.touched:
            for mesh in sorted(self.touched):
                self._start_action(mesh, now)
            self.touched.clear()
        self._note_memory(now)
        for time_s, flow, version in self.network.settle(now):
            self._push(time_s, _FLOW, flow, version)

    def _start_action(self, mesh: int, now: float) -> None:
        """Start the next action of a mesh, if it can."""
        stream, position = self.streams[mesh], len(self.starts[mesh])
        if self.computing[mesh] or self.blocked[mesh] or position == len(stream):
            return
        action = stream[position]
        for transfer in action.waits:
            if not self.arrived[transfer]:
                return
        self.computing[mesh] = True
        self.starts[mesh].append(now)
        if action.start_bytes:
            self._add_bytes(mesh, action.start_bytes)
        self._push(now + action.duration_s, _ACTION, mesh)

    def _start_blocking(self, index: int, now: float) -> bool:
        """Start a blocking transfer if neither of its meshes computes; return whether it did."""
        transfer = self.transfers[index]
        if self.computing[transfer.source] or self.computing[transfer.destination]:
            return False
        self.blocked[transfer.destination] += 1
        self._start_transfer(index, now)
        return True

    def _start_transfer(self, index: int, now: float) -> None:
        transfer = self.transfers[index]
        self.transfer_start[index] = now
        if not transfer.flows:
            self._end_transfer(index, now)
            return
        by_latency: dict[float, list[Flow]] = {}
        for flow in transfer.flows:
            by_latency.setdefault(flow.latency_s, []).append(flow)
        for latency_s, flows in by_latency.items():
            if latency_s > 0:
                self._push(now + latency_s, _LATENCY, len(self.delayed))
                self.delayed.append((index, flows))
            else:
                self._begin_flows(index, flows, now)

    def _begin_flows(self, index: int, flows: list[Flow], now: float) -> None:
        for flow in flows:
            if flow.num_bytes > 0:
                self.network.begin(flow, now)
                self.transfer_of_flow.append(index)
            else:
                self._end_flow(index, now)

    # Ends.

    def _end_action(self, mesh: int, now: float) -> None:
        action = self.streams[mesh][len(self.ends[mesh])]
        self.ends[mesh].append(now)
        self.computing[mesh] = False
        self.touched.add(mesh)
        if action.end_bytes:
            self._add_bytes(mesh, action.end_bytes)
        for index in action.makes:
            transfer = self.transfers[index]
            if transfer.blocking and transfer.flows:
                self.blocked[mesh] += 1
                self.pending.append(index)
            else:
                self._start_transfer(index, now)

    def _end_flow(self, index: int, now: float) -> None:
        self.flows_left[index] -= 1
        if not self.flows_left[index]:
            self._end_transfer(index, now)

    def _end_transfer(self, index: int, now: float) -> None:
        transfer = self.transfers[index]
        self.transfer_end[index] = now
        self.arrived[index] = True
        self.touched.add(transfer.destination)
        if transfer.blocking and transfer.flows:
            self.blocked[transfer.source] -= 1
            self.blocked[transfer.destination] -= 1
            self.touched.add(transfer.source)

    # Memory: changes of one half of an instant count together.

    def _add_bytes(self, mesh: int, num_bytes: int) -> None:
        self.change[mesh] += num_bytes
        self.changed.append(mesh)

    def _note_memory(self, now: float) -> None:
        for mesh in self.changed:
            if self.change[mesh]:
                self.in_use[mesh] += self.change[mesh]
                self.change[mesh] = 0
                self.memory[mesh].append(MemoryStep(now, self.in_use[mesh]))
        self.changed.clear()

    def _deadlock(self) -> str:
        maker: dict[int, str] = {}
        for mesh, stream in enumerate(self.streams):
            for action in stream:
                maker |= {i: f"{action.name} on mesh {mesh}" for i in action.makes}
        lines: list[str] = []
        for mesh, stream in enumerate(self.streams):
            if len(self.ends[mesh]) < len(stream):
                action = stream[len(self.ends[mesh])]
                index = next(i for i in action.waits if not self.arrived[i])
                lines.append(
                    f"on mesh {mesh} {action.name} waits for {self.transfers[index].name}, which "
                    f"{maker.get(index, 'nobody')} makes"
                )
        return "deadlock: " + "; ".join(lines)
