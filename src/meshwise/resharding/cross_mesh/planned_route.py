"""The route of a tensor whose tiles are sent as a cross-mesh plan says.

What passes between hosts does so as the plan says: the parts of boxes from their senders, in the
order of the plan, by the legs of its strategy.  Two of them that share a port of a host do not
overlap: the second one leaves when a signal says that the first one has come.  Between the same two
hosts arrays that are there come in the order in which they are offered, so no signal is needed; if
the first of two has to wait for a signal, the second waits for the same.

What a host has already, its devices copy inside the host.  Every device gets all pieces of its
tile, and puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwise.resharding.cross_mesh.cross_mesh_plan import CrossMeshPlan, Sent, cross_mesh_plan
from meshwise.resharding.cross_mesh.host_tasks import HostTask, host_task
from meshwise.resharding.cross_mesh.legs import Leg, legs
from meshwise.resharding.cross_mesh.numbered_route import (
    Arrivals,
    Hop,
    JoinedTile,
    numbered_route,
)
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.cross_mesh.strategies import best_chunk_bytes
from meshwise.resharding.cross_mesh.unit_tasks import UnitTask, unit_tasks
from meshwise.resharding.route import Route, route_once
from meshwise.resharding.tiles import Box, cut_box, holders, num_elements, overlap


def planned_route(
    source: Mapping[int, Box],
    destination: Mapping[int, Box],
    hosts: Sequence[int],
    itemsize: int,
    sending: Sending,
) -> Route:
    """Return the route on which a tensor is sent by a strategy.

    In one host it is that of `route_once`.

    Args:
        source: The box that each device holds; together they are the whole tensor.
        destination: The box that each device needs.
        hosts: For each device the number of its host.
        itemsize: Bytes of an element.
        sending: The strategy, and what senders, order and chunks are chosen by.

    Raises:
        ClusterError: the bandwidth is not a finite number above 0.
        ValueError: there is no such strategy or algorithm.
    """
    if len({hosts[device] for device in (*source, *destination)}) == 1:
        return route_once(source, destination, hosts)
    units = unit_tasks(source, destination)
    tasks = [host_task(unit, hosts, itemsize) for unit in units]
    plan = _plan([task for task in tasks if task is not None], sending)
    return route_of_plan(source, destination, hosts, plan)


def route_of_plan(
    source: Mapping[int, Box],
    destination: Mapping[int, Box],
    hosts: Sequence[int],
    plan: CrossMeshPlan,
) -> Route:
    """Return the route that carries out a plan.

    Args:
        source: The box that each device holds; together they are the whole tensor.
        destination: The box that each device needs.
        hosts: For each device the number of its host.
        plan: The plan; its tasks are those of the unit tasks that pass between hosts, in order.
    """
    units = unit_tasks(source, destination)
    route = _PlannedRoute(source, destination, hosts)
    for unit in units:
        route.send_inside(unit)
    route.send([unit for unit in units if host_task(unit, hosts, 1) is not None], plan)
    return route.found()


def _plan(tasks: Sequence[HostTask], sending: Sending) -> CrossMeshPlan:
    rate = sending.bytes_per_s
    chunk_bytes = best_chunk_bytes(tasks, rate, sending.chunk_s) if tasks and rate > 0 else None
    return cross_mesh_plan(tasks, rate, sending.strategy, sending.algorithm, chunk_bytes)


# Ports of hosts.
_IN, _OUT = "in", "out"


class _Sending(NamedTuple):
    """A transfer of the plan on its way.

    Attributes:
        number: Tells it from others.
        waits: What must have come before it begins.
    """

    number: int
    waits: Arrivals


class _Busy(NamedTuple):
    """The last thing that a port carries so far; when it has come, the port is free.

    Attributes:
        piece: The piece, and the device to which it comes.
        way: The host that sends it, and the one that gets it.
        sending: Its transfer.
    """

    piece: tuple[Box, int]
    way: tuple[int, int]
    sending: _Sending


class _TimedHop(NamedTuple):
    """A hop with the time at which it begins as planned."""

    start_s: float
    hop: Hop


class _PlannedRoute:
    """A route while it grows; lives only inside `route_of_plan`."""

    def __init__(
        self,
        source: Mapping[int, Box],
        destination: Mapping[int, Box],
        hosts: Sequence[int],
    ) -> None:
        self.source, self.hosts = source, hosts
        self.hops: list[_TimedHop] = []
        # For each port of a host what it carries last.
        self.last: dict[tuple[str, int], _Busy] = {}
        # Transfers between hosts so far.
        self.count = 0
        # Elements that each device sends.
        self.sent: dict[int, int] = {}
        # For each device the pieces of its tile.
        self.pieces: dict[int, list[Box]] = {}
        # A tile is told by all devices that need it.
        self.tiles = {devices: tile for tile, devices in holders(destination).items()}
        # For each tile and host the devices that need it, first the one that lacks least of it.
        self.groups: dict[tuple[Box, int], list[int]] = {}
        for devices, tile in self.tiles.items():
            for device in devices:
                self.groups.setdefault((tile, hosts[device]), []).append(device)
        for (tile, _), group in self.groups.items():
            group.sort(key=lambda device: (self.missing(tile, device), device))

    def missing(self, tile: Box, device: int) -> int:
        """Return the elements of a tile that a device does not hold."""
        held = self.source.get(device)
        return num_elements(tile) - (0 if held is None else num_elements(overlap(tile, held)))

    def receivers(self, unit: UnitTask, host: int) -> list[int]:
        """Return the devices of a host that need a box, first the one that lacks least."""
        return self.groups.get((self.tiles[unit.receivers], host), [])

    def sender(self, unit: UnitTask, host: int, box: Box) -> int:
        """Return the device of a host that sends a part: the one that has sent least."""
        having = [device for device in unit.senders if self.hosts[device] == host]
        found = min(having, key=lambda device: (self.sent.get(device, 0), device))
        self.sent[found] = self.sent.get(found, 0) + num_elements(box)
        return found

    def add(self, start_s: float, hop: Hop) -> None:
        """Let a piece go from device to device."""
        self.hops.append(_TimedHop(start_s, hop))
        self.pieces.setdefault(hop.destination, []).append(hop.box)

    def send_inside(self, unit: UnitTask) -> None:
        """Copy a box to devices whose host has it."""
        for host in sorted({self.hosts[device] for device in unit.senders}):
            for device in self.receivers(unit, host):
                if device in unit.senders:
                    self.pieces.setdefault(device, []).append(unit.box)
                else:
                    self.add(0.0, Hop(unit.box, self.sender(unit, host, unit.box), device))

    def send(self, units: Sequence[UnitTask], plan: CrossMeshPlan) -> None:
        """Send the parts of boxes as planned.

        Args:
            units: What is sent between hosts.
            plan: Who sends it and when; its tasks are those of the units.
        """
        for transfer in plan.transfers:
            unit, task = units[transfer.task], plan.tasks[transfer.task]
            part = _part(unit.box, transfer, task)
            if part is None:
                continue
            found = legs(
                plan.strategy,
                part,
                [self.receivers(unit, host) for host in task.receivers],
                self.sender(unit, transfer.sender, part),
                max(1, round(transfer.num_bytes / plan.chunk_bytes[transfer.task])),
            )
            waits = self.waits(found, transfer.sender)
            slot_s = (transfer.end_s - transfer.start_s) / (1 + max(leg.slot for leg in found))
            for leg in found:
                start_s = transfer.start_s + leg.slot * slot_s
                first = leg.source == found[0].source
                hop = Hop(leg.box, leg.source, leg.destination, waits if first else ())
                self.add(start_s, hop)

    def waits(self, transfer: Sequence[Leg], sender: int) -> Arrivals:
        """Return what must have come before a transfer begins, and note what it keeps busy."""
        last: dict[tuple[str, int], Leg] = {}
        # Pieces of transfers on other ways, and transfers on the same way.
        found: dict[tuple[Box, int], None] = {}
        awaited: set[_Sending] = set()
        followed: dict[_Sending, None] = {}
        for leg in transfer:
            way = self.hosts[leg.source], self.hosts[leg.destination]
            if way[0] == way[1]:
                continue
            ports = [(_IN, way[1]), *([(_OUT, sender)] if way[0] == sender else [])]
            for port in ports:
                last[port] = leg
                before = self.last.get(port)
                if before is None:
                    continue
                if before.way == way:
                    followed[before.sending] = None
                else:
                    found[before.piece] = None
                    awaited.add(before.sending)
        for sending in followed:
            if sending not in awaited:
                found.update(dict.fromkeys(sending.waits))
        own = _Sending(self.count, tuple(found))
        self.count += 1
        for port, leg in last.items():
            way = self.hosts[leg.source], self.hosts[leg.destination]
            self.last[port] = _Busy((leg.box, leg.destination), way, own)
        return own.waits

    def found(self) -> Route:
        """Return the route, its hops in the order in which they begin."""
        tiles = [
            JoinedTile(tile, device, tuple(sorted(self.pieces[device])))
            for devices, tile in self.tiles.items()
            for device in devices
        ]
        hops = [timed.hop for timed in sorted(self.hops, key=lambda timed: timed.start_s)]
        return numbered_route(self.source, hops, tiles)


def _part(box: Box, transfer: Sent, task: HostTask) -> Box | None:
    """Return the part of a box that a transfer of a plan sends; None if it has no element."""
    first, last = transfer.first_byte, transfer.first_byte + transfer.num_bytes
    parts = cut_box(box, [min(byte / task.num_bytes, 1.0) for byte in (first, last)])
    if len(parts) > 1:
        return parts[1] if num_elements(parts[1]) else None
    # A single number is sent with the first part.
    return None if first else box
