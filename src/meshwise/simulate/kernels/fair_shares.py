"""The compiled part of a shared network: which flows move, and how fast.

Every host has three ports: what its card sends, what it receives, and the links inside.  A flow
between hosts goes through the sender's first and the receiver's second port, a flow within a host
through the third only.  Rates change only when a flow begins or ends, and only those of flows that
share a port with it, directly or through others.

Source: docs/facts.md section 3 (one full-duplex card a host; links between hosts do not disturb
each other).  Max-min fairness: Bertsekas and Gallager, "Data networks", section 6.5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import light_kernel, part

# A flow with less than this share of its bytes left has ended: the rest is rounding.
_ROUNDING = 1e-9

# Columns of `Network.ports`: the first and the last entry of the list of a port (-1: none), whether
# flows began or ended there since the rates were computed, and its place among the ports that are
# looked at (-1: none).  Row k also has the k-th port at which flows began or ended, the k-th that
# is looked at, and the k-th that was.
_FIRST, _LAST, _HAS_CHANGED, _PLACE, _CHANGED, _LOOKED, _SEEN = range(7)
PORT_COLUMNS = 7
# Columns of `Network.slots`: the two ports of a flow (-1: none); the entries after and before its
# two own ones in the lists of these; a number that grows with each rate, and when the flow ends;
# whose flow it is; whether it is looked at.  Row k also has the k-th slot that is free again, and
# the k-th flow that is looked at or has a new rate.
PORT, AFTER, BEFORE = 0, 2, 4
VERSION, OWNER, _IS_LOOKED, _FREE, FOUND = range(6, 11)
SLOT_COLUMNS = 11
# Columns of `Network.floats`: bytes/s that a flow cannot exceed; bytes that had not moved when its
# rate began; bytes that are rounding; bytes/s (0 until known); seconds at which this rate began.
# Row k also has the seconds at which the k-th flow with a new rate ends.
_LIMIT, _LEFT, _TINY, _RATE, _SINCE, FINISH = range(6)
FLOAT_COLUMNS = 6
# Places in `Network.numbers`: slots that were ever used, those of them that are free, and ports
# that have changed.
_NUM_USED, _NUM_FREE, _NUM_CHANGED = range(3)


class Network(NamedTuple):
    """Flows that move, each in a slot, and the ports that they go through.

    The flows of a port are a list in the order in which they began.  Flow `f` stands in the list of
    its k-th port as entry `2 f + k`.

    Few arrays with many columns: each array costs time at each call of a compiled function.

    Attributes:
        ports: For each port its numbers.
        capacity: For each port its bytes/s.
        slots: For each slot its numbers; zero where it was never used.
        floats: For each slot its bytes, rates and seconds.
        numbers: How many of what there are.
    """

    ports: Ints
    capacity: Floats
    slots: Ints
    floats: Floats
    numbers: Ints


def empty_network(capacity: Floats, num_slots: int) -> Network:
    """Return a network without flows.

    Args:
        capacity: For each port its bytes/s.
        num_slots: The most flows that may move at once.
    """
    ports = np.zeros((len(capacity), PORT_COLUMNS), np.int64)
    ports[:, [_FIRST, _LAST, _PLACE]] = -1
    # The system gives memory for slots only where they are used.
    slots = np.zeros((num_slots, SLOT_COLUMNS), np.int64)
    floats = np.zeros((num_slots, FLOAT_COLUMNS), np.float64)
    return Network(ports, capacity, slots, floats, np.zeros(3, np.int64))


@light_kernel
def fair_rates(paths: Ints, limits: Floats, capacities: Floats) -> Floats:
    """Return rates with which no flow can get more without taking from one that has no more.

    All rates grow together; when a port is full, or a flow at its limit, those flows are fixed.

    Args:
        paths: For each flow its ports, shape (flows, 2); -1 in place of a second.
        limits: For each flow what it cannot exceed, in bytes/s.
        capacities: For each port its bytes/s.

    Returns:
        For each flow its bytes/s.
    """
    num_flows = len(limits)
    rates = np.full(num_flows, -1.0)
    left = capacities.copy()
    count = np.zeros(len(capacities), np.int64)
    for flow in range(num_flows):
        for port in paths[flow]:
            if port >= 0:
                count[port] += 1
    num_fixed = 0
    while num_fixed < num_flows:
        full, share = fullest(left, count)
        rate = share
        for flow in range(num_flows):
            if rates[flow] < 0:
                rate = min(rate, limits[flow])
        for flow in range(num_flows):
            if rate < share:
                is_fixed = limits[flow] == rate
            else:
                is_fixed = paths[flow, 0] == full or paths[flow, 1] == full
            if is_fixed and rates[flow] < 0:
                rates[flow] = rate
                num_fixed += 1
                take(left, count, paths[flow], rate)
    return rates


@part
def fullest(left: Floats, count: Ints) -> tuple[int, float]:
    """Return the port that is full first if the rates of open flows grow together, and when.

    Args:
        left: For each port the bytes/s that are not taken.
        count: For each port its open flows.
    """
    full, share = 0, np.inf
    for port in range(len(left)):
        if count[port] > 0 and left[port] / count[port] < share:
            full, share = port, left[port] / count[port]
    return full, share


@part
def take(left: Floats, count: Ints, path: Ints, rate: float) -> None:
    """Take a rate from what is left of the ports of a flow."""
    for port in path:
        if port >= 0:
            left[port] = max(left[port] - rate, 0.0)
            count[port] -= 1


@part
def note_change(network: Network, port: int) -> None:
    """Note that a flow began or ended at a port."""
    if not network.ports[port, _HAS_CHANGED]:
        network.ports[port, _HAS_CHANGED] = 1
        network.ports[network.numbers[_NUM_CHANGED], _CHANGED] = port
        network.numbers[_NUM_CHANGED] += 1


@part
def begin_flow(
    network: Network, path: Ints, num_bytes: float, limit: float, owner: int, now: float
) -> None:
    """Let a flow begin; its rate is known after `settle`."""
    if network.numbers[_NUM_FREE] > 0:
        network.numbers[_NUM_FREE] -= 1
        slot = network.slots[network.numbers[_NUM_FREE], _FREE]
    else:
        slot = network.numbers[_NUM_USED]
        network.numbers[_NUM_USED] += 1
    network.floats[slot, _LIMIT], network.floats[slot, _LEFT] = limit, num_bytes
    network.floats[slot, _TINY] = num_bytes * _ROUNDING
    network.floats[slot, _RATE], network.floats[slot, _SINCE] = 0.0, now
    network.slots[slot, OWNER] = owner
    for k in range(2):
        port = path[k]
        network.slots[slot, PORT + k] = port
        if port >= 0:
            last = network.ports[port, _LAST]
            network.slots[slot, BEFORE + k], network.slots[slot, AFTER + k] = last, -1
            network.ports[port, _LAST] = 2 * slot + k
            if last >= 0:
                network.slots[last // 2, AFTER + last % 2] = 2 * slot + k
            else:
                network.ports[port, _FIRST] = 2 * slot + k
            note_change(network, port)


@part
def end_flow(network: Network, slot: int) -> None:
    """Let a flow end; the others share what it had after `settle`."""
    network.slots[slot, VERSION] += 1
    for k in range(2):
        port = network.slots[slot, PORT + k]
        if port >= 0:
            before, after = network.slots[slot, BEFORE + k], network.slots[slot, AFTER + k]
            if before >= 0:
                network.slots[before // 2, AFTER + before % 2] = after
            else:
                network.ports[port, _FIRST] = after
            if after >= 0:
                network.slots[after // 2, BEFORE + after % 2] = before
            else:
                network.ports[port, _LAST] = before
            if network.ports[port, _FIRST] >= 0:
                note_change(network, port)
    network.slots[network.numbers[_NUM_FREE], _FREE] = slot
    network.numbers[_NUM_FREE] += 1


@part
def joined_flows(network: Network, port: int, first: int) -> tuple[int, int]:
    """Find the flows that share a port with those at a port, directly or through others.

    Args:
        network: Its columns of flows found and of ports looked at are changed.
        port: The port.
        first: Where to write the flows.

    Returns:
        How many flows and how many ports there are.
    """
    ports, slots = network.ports, network.slots
    num_flows, num_ports, at = 0, 1, 0
    ports[0, _LOOKED], ports[port, _PLACE] = port, 0
    while at < num_ports:
        entry = ports[ports[at, _LOOKED], _FIRST]
        while entry >= 0:
            flow, own = entry // 2, entry % 2
            if not slots[flow, _IS_LOOKED]:
                slots[flow, _IS_LOOKED] = 1
                slots[first + num_flows, FOUND] = flow
                num_flows += 1
                other = slots[flow, PORT + 1 - own]
                if other >= 0 and ports[other, _PLACE] < 0:
                    ports[other, _PLACE], ports[num_ports, _LOOKED] = num_ports, other
                    num_ports += 1
            entry = slots[flow, AFTER + own]
        at += 1
    return num_flows, num_ports


@part
def rates_of_joined(network: Network, first: int, num_flows: int, num_ports: int) -> Floats:
    """Return the rates of flows as `joined_flows` finds them."""
    ports, slots = network.ports, network.slots
    limits, capacities = np.empty(num_flows), np.empty(num_ports)
    for k in range(num_ports):
        capacities[k] = network.capacity[ports[k, _LOOKED]]
    for k in range(num_flows):
        limits[k] = network.floats[slots[first + k, FOUND], _LIMIT]
    if num_flows == 1:
        return np.minimum(limits, capacities.min())
    paths = np.full((num_flows, 2), -1, np.int64)
    for k in range(num_flows):
        for way in range(2):
            port = slots[slots[first + k, FOUND], PORT + way]
            if port >= 0:
                paths[k, way] = ports[port, _PLACE]
    return fair_rates(paths, limits, capacities)


@part
def set_rate(network: Network, flow: int, rate: float, now: float) -> float:
    """Let a flow go on at another rate; return the seconds at which it ends then."""
    floats = network.floats
    left = floats[flow, _LEFT] - floats[flow, _RATE] * (now - floats[flow, _SINCE])
    if left <= floats[flow, _TINY]:
        left = 0.0
    floats[flow, _LEFT], floats[flow, _RATE], floats[flow, _SINCE] = left, rate, now
    network.slots[flow, VERSION] += 1
    return now + left / rate


@part
def settle(network: Network, now: float) -> int:
    """Compute the rates anew where flows began or ended.

    Args:
        network: Its columns of flows found and of their ends are changed: they have the flows with
            another rate, and when these end if no rate changes before.
        now: Seconds.

    Returns:
        How many flows have another rate.
    """
    ports, slots = network.ports, network.slots
    num_new, num_seen = 0, 0
    for at in range(network.numbers[_NUM_CHANGED]):
        port = ports[at, _CHANGED]
        ports[port, _HAS_CHANGED] = 0
        if ports[port, _PLACE] >= 0 or ports[port, _FIRST] < 0:
            continue
        first = num_new
        num_flows, num_ports = joined_flows(network, port, first)
        rates = rates_of_joined(network, first, num_flows, num_ports)
        for k in range(num_ports):
            ports[num_seen + k, _SEEN] = ports[k, _LOOKED]
        num_seen += num_ports
        for k in range(num_flows):
            flow = slots[first + k, FOUND]
            slots[flow, _IS_LOOKED] = 0
            if rates[k] != network.floats[flow, _RATE]:
                network.floats[num_new, FINISH] = set_rate(network, flow, rates[k], now)
                slots[num_new, FOUND] = flow
                num_new += 1
    for k in range(num_seen):
        ports[ports[k, _SEEN], _PLACE] = -1
    network.numbers[_NUM_CHANGED] = 0
    return num_new
