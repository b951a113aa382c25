"""The compiled part of the engine: event after event, on one clock."""

from __future__ import annotations

import heapq
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import light_kernel, part
from meshwise.simulate.kernels.fair_shares import (
    FINISH,
    FOUND,
    OWNER,
    VERSION,
    Network,
    begin_flow,
    end_flow,
    settle,
)

# Kinds of events.
_ACTION, _FLOW, _LATENCY = range(3)

# Columns of `Run.meshes`: the first action of a mesh; how many it has started, and how many have
# ended; whether one runs; the blocking transfers that wait or run and keep it from computing;
# whether an action may start; its bytes in use, their change at this half of an instant, and
# whether there may be one; its first step of memory, and how many there are.  Row k also has the
# k-th mesh at which an action may start, and the k-th whose bytes may change.
(
    FIRST_ACTION,
    _NUM_STARTED,
    NUM_ENDED,
    _COMPUTING,
    _BLOCKED,
    IS_TOUCHED,
    IN_USE,
    _CHANGE,
    _HAS_CHANGED,
    FIRST_STEP,
    NUM_STEPS,
    TOUCHED,
    _CHANGED,
) = range(13)
MESH_COLUMNS = 13
# Columns of `Run.actions`.
START_BYTES, END_BYTES, FIRST_WAIT, FIRST_MAKE = range(4)
ACTION_COLUMNS = 4
# Columns of `Run.action_s`.
DURATION, START, END = range(3)
ACTION_S_COLUMNS = 3
# Columns of `Run.transfers`; row k also has the k-th of those that wait to block.
SOURCE, DESTINATION, KIND, _FLOWS_LEFT, _PENDING = range(5)
TRANSFER_COLUMNS = 5
# Columns of `Run.transfer_s`.
MADE, ARRIVAL = range(2)
# Places in `Run.numbers`: events, meshes at which an action may start, transfers that wait to
# block, and meshes whose bytes may change.
_NUM_EVENTS, NUM_TOUCHED, _NUM_PENDING, _NUM_CHANGED = range(4)

# Columns of `Messages.kinds`.
BLOCKING, NUM_FLOWS, FIRST_GROUP = range(3)
# Columns of `Messages.flow_floats`.
FLOW_BYTES, FLOW_LIMIT, LATENCY = range(3)

# Seconds, a number that grows, the kind, and what it is of: a mesh; a slot of the network, and its
# version; a transfer, and a group of its flows.
_Heap: TypeAlias = list[tuple[float, int, int, int, int]]


class Messages(NamedTuple):
    """Kinds of transfers.

    Flows of equal latency are a group: their bytes begin to move together.

    Attributes:
        kinds: For each kind, and once more at the end: whether sender and receiver do nothing else
            meanwhile (1, or 0); its flows, where one of none arrives when it is made; its first
            group.  A blocking transfer starts when neither mesh is in the midst of an action; the
            sender waits for that, and goes on after it.
        groups: For each group its first flow, and how many flows there are.
        flows: For each flow its ports; -1 in place of a second.
        flow_floats: For each flow its bytes, what it cannot exceed in bytes/s, and the seconds
            before the first byte moves.
    """

    kinds: Ints
    groups: Ints
    flows: Ints
    flow_floats: Floats


class Run(NamedTuple):
    """All of a simulation.

    Few arrays with many columns: each array costs time at each call of a compiled function.

    Attributes:
        meshes: For each mesh, and once more at the end, its numbers.
        actions: For each action, and once more at the end: the changes of its mesh's memory when it
            starts and when it ends, and its first places in `waits` and `makes`.
        action_s: For each action its duration, start and end in seconds; NaN until known.
        waits: Transfers that must have arrived before actions start.
        makes: Transfers that are ready when actions end.
        transfers: For each transfer its meshes, its kind, and the flows that have not ended.
        transfer_s: For each transfer its start and when it arrived, in seconds; NaN until known.
        messages: Kinds of transfers.
        network: What moves.
        memory_s: When the memory of meshes changed, in seconds.
        memory_bytes: Their bytes in use from then on.
        numbers: How many of what there are.
    """

    meshes: Ints
    actions: Ints
    action_s: Floats
    waits: Ints
    makes: Ints
    transfers: Ints
    transfer_s: Floats
    messages: Messages
    network: Network
    memory_s: Floats
    memory_bytes: Ints
    numbers: Ints


@partial(light_kernel, compiled_in_s=8.0)
def run_events(run: Run) -> None:
    """Take event after event until none is left.

    Args:
        run: At the start, every mesh touched; it is changed.
    """
    # The type of a heap follows from what it would hold.
    heap = [(0.0, 0, 0, 0, 0) for _ in range(0)]
    start(run, heap, 0.0)
    # An event at infinity never happens; a mesh that waits for it is stuck.
    while len(heap) > 0 and heap[0][0] < np.inf:
        now = heap[0][0]
        while len(heap) > 0 and heap[0][0] == now:
            _, _, kind, item, version = heapq.heappop(heap)
            if kind == _ACTION:
                end_action(run, heap, item, now)
            elif kind == _LATENCY:
                begin_flows(run, item, version, now)
            elif run.network.slots[item, VERSION] == version:
                end_flow(run.network, item)
                end_flow_of(run, run.network.slots[item, OWNER], now)
        note_memory(run, now)
        start(run, heap, now)


@part
def push(run: Run, heap: _Heap, time_s: float, kind: int, item: int, version: int) -> None:
    """Note when something will happen."""
    heapq.heappush(heap, (time_s, run.numbers[_NUM_EVENTS], kind, item, version))
    run.numbers[_NUM_EVENTS] += 1


# Starts.


@part
def start(run: Run, heap: _Heap, now: float) -> None:
    """Start whatever can start at this instant."""
    num_pending, run.numbers[_NUM_PENDING] = run.numbers[_NUM_PENDING], 0
    for at in range(num_pending):
        transfer = run.transfers[at, _PENDING]
        if not start_blocking(run, heap, transfer, now):
            run.transfers[run.numbers[_NUM_PENDING], _PENDING] = transfer
            run.numbers[_NUM_PENDING] += 1
    for at in range(sort_touched(run)):
        mesh = run.meshes[at, TOUCHED]
        run.meshes[mesh, IS_TOUCHED] = 0
        start_action(run, heap, mesh, now)
    run.numbers[NUM_TOUCHED] = 0
    note_memory(run, now)
    for at in range(settle(run.network, now)):
        slot = run.network.slots[at, FOUND]
        version = run.network.slots[slot, VERSION]
        push(run, heap, run.network.floats[at, FINISH], _FLOW, slot, version)


@part
def sort_touched(run: Run) -> int:
    """Sort the meshes at which an action may start: few at a time.  Returns how many they are."""
    for at in range(1, run.numbers[NUM_TOUCHED]):
        mesh, to = run.meshes[at, TOUCHED], at
        while to > 0 and run.meshes[to - 1, TOUCHED] > mesh:
            run.meshes[to, TOUCHED] = run.meshes[to - 1, TOUCHED]
            to -= 1
        run.meshes[to, TOUCHED] = mesh
    return run.numbers[NUM_TOUCHED]


@part
def start_action(run: Run, heap: _Heap, mesh: int, now: float) -> None:
    """Start the next action of a mesh, if it can."""
    action = run.meshes[mesh, FIRST_ACTION] + run.meshes[mesh, _NUM_STARTED]
    is_kept = run.meshes[mesh, _COMPUTING] or run.meshes[mesh, _BLOCKED]
    if is_kept or action == run.meshes[mesh + 1, FIRST_ACTION]:
        return
    for at in range(run.actions[action, FIRST_WAIT], run.actions[action + 1, FIRST_WAIT]):
        if np.isnan(run.transfer_s[run.waits[at], ARRIVAL]):
            return
    run.meshes[mesh, _COMPUTING] = 1
    run.meshes[mesh, _NUM_STARTED] += 1
    run.action_s[action, START] = now
    add_bytes(run, mesh, run.actions[action, START_BYTES])
    push(run, heap, now + run.action_s[action, DURATION], _ACTION, mesh, 0)


@part
def start_blocking(run: Run, heap: _Heap, transfer: int, now: float) -> bool:
    """Start a blocking transfer if neither of its meshes computes; return whether it did."""
    source, destination = run.transfers[transfer, SOURCE], run.transfers[transfer, DESTINATION]
    if run.meshes[source, _COMPUTING] or run.meshes[destination, _COMPUTING]:
        return False
    run.meshes[destination, _BLOCKED] += 1
    start_transfer(run, heap, transfer, now)
    return True


@part
def start_transfer(run: Run, heap: _Heap, transfer: int, now: float) -> None:
    """Start a transfer."""
    kinds, kind = run.messages.kinds, run.transfers[transfer, KIND]
    run.transfer_s[transfer, MADE] = now
    run.transfers[transfer, _FLOWS_LEFT] = kinds[kind, NUM_FLOWS]
    if kinds[kind, NUM_FLOWS] == 0:
        end_transfer(run, transfer, now)
    for group in range(kinds[kind, FIRST_GROUP], kinds[kind + 1, FIRST_GROUP]):
        latency_s = run.messages.flow_floats[run.messages.groups[group], LATENCY]
        if latency_s > 0:
            push(run, heap, now + latency_s, _LATENCY, transfer, group)
        else:
            begin_flows(run, transfer, group, now)


@part
def begin_flows(run: Run, transfer: int, group: int, now: float) -> None:
    """Let the bytes of a group of flows begin to move."""
    groups, floats = run.messages.groups, run.messages.flow_floats
    for flow in range(groups[group], groups[group + 1]):
        num_bytes, limit = floats[flow, FLOW_BYTES], floats[flow, FLOW_LIMIT]
        if num_bytes > 0:
            begin_flow(run.network, run.messages.flows[flow], num_bytes, limit, transfer, now)
        else:
            end_flow_of(run, transfer, now)


# Ends.


@part
def end_action(run: Run, heap: _Heap, mesh: int, now: float) -> None:
    """End the action that a mesh runs."""
    action = run.meshes[mesh, FIRST_ACTION] + run.meshes[mesh, NUM_ENDED]
    run.meshes[mesh, NUM_ENDED] += 1
    run.action_s[action, END] = now
    run.meshes[mesh, _COMPUTING] = 0
    touch(run, mesh)
    add_bytes(run, mesh, run.actions[action, END_BYTES])
    for at in range(run.actions[action, FIRST_MAKE], run.actions[action + 1, FIRST_MAKE]):
        transfer = run.makes[at]
        if run.messages.kinds[run.transfers[transfer, KIND], BLOCKING]:
            run.meshes[mesh, _BLOCKED] += 1
            run.transfers[run.numbers[_NUM_PENDING], _PENDING] = transfer
            run.numbers[_NUM_PENDING] += 1
        else:
            start_transfer(run, heap, transfer, now)


@part
def end_flow_of(run: Run, transfer: int, now: float) -> None:
    """End one flow of a transfer."""
    run.transfers[transfer, _FLOWS_LEFT] -= 1
    if run.transfers[transfer, _FLOWS_LEFT] == 0:
        end_transfer(run, transfer, now)


@part
def end_transfer(run: Run, transfer: int, now: float) -> None:
    """Let a transfer arrive."""
    source, destination = run.transfers[transfer, SOURCE], run.transfers[transfer, DESTINATION]
    run.transfer_s[transfer, ARRIVAL] = now
    touch(run, destination)
    if run.messages.kinds[run.transfers[transfer, KIND], BLOCKING]:
        run.meshes[source, _BLOCKED] -= 1
        run.meshes[destination, _BLOCKED] -= 1
        touch(run, source)


@part
def touch(run: Run, mesh: int) -> None:
    """Note that an action may start."""
    if not run.meshes[mesh, IS_TOUCHED]:
        run.meshes[mesh, IS_TOUCHED] = 1
        run.meshes[run.numbers[NUM_TOUCHED], TOUCHED] = mesh
        run.numbers[NUM_TOUCHED] += 1


# Memory: changes of one half of an instant count together.


@part
def add_bytes(run: Run, mesh: int, num_bytes: int) -> None:
    """Change the bytes in use of a mesh."""
    run.meshes[mesh, _CHANGE] += num_bytes
    if not run.meshes[mesh, _HAS_CHANGED]:
        run.meshes[mesh, _HAS_CHANGED] = 1
        run.meshes[run.numbers[_NUM_CHANGED], _CHANGED] = mesh
        run.numbers[_NUM_CHANGED] += 1


@part
def note_memory(run: Run, now: float) -> None:
    """Note the bytes in use of meshes where they changed."""
    for at in range(run.numbers[_NUM_CHANGED]):
        mesh = run.meshes[at, _CHANGED]
        run.meshes[mesh, _HAS_CHANGED] = 0
        if run.meshes[mesh, _CHANGE] != 0:
            run.meshes[mesh, IN_USE] += run.meshes[mesh, _CHANGE]
            run.meshes[mesh, _CHANGE] = 0
            step = run.meshes[mesh, FIRST_STEP] + run.meshes[mesh, NUM_STEPS]
            run.memory_s[step], run.memory_bytes[step] = now, run.meshes[mesh, IN_USE]
            run.meshes[mesh, NUM_STEPS] += 1
    run.numbers[_NUM_CHANGED] = 0
