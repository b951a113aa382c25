"""What a tensor takes on its way to another mesh: what passes, and what is gathered there.

Where each byte passes once, each device is sent an equal part of its tile, and devices with the
same tile put it together among themselves.  Strategies (`cross_mesh.strategies`) differ in how much
of that is done inside hosts.

Source: Alpa section 6 (local all-gather); AlpaComm section 3.1; docs/facts.md section 3.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from meshwise.cluster.collectives import ALL_GATHER, collective_time_s
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, num_parts, used_axes
from meshwise.resharding.cross_mesh.strategies import GATHERED, GLOBAL_GATHERED, SEND_RECV


class Passing(NamedTuple):
    """How much passes between hosts, as shares of the bytes of a tensor.

    Attributes:
        sent: What the hosts that have it send, all together; above 1 if it passes more than once.
        received: What comes into the host that gets most, from any other.  What a host waits for
            after all has been sent (the end of a ring) counts as more bytes.
    """

    sent: float
    received: float


class Arrival(NamedTuple):
    """The arrival of a tensor on other hosts.

    Attributes:
        passing: How much of it passes between hosts.
        gather_s: Seconds in which devices of the destination gather it among themselves.
    """

    passing: Passing
    gather_s: float


def arrival(
    num_bytes: int, layout: Layout, mesh: LogicalMesh, num_hosts: int, strategy: str
) -> Arrival:
    """Return how much of a tensor passes between hosts, and how long its devices gather it.

    Args:
        num_bytes: Bytes of the whole tensor.
        layout: Its layout on the destination, nothing partial.
        mesh: The destination; its devices are those of one host after another.
        num_hosts: Hosts of the destination, all with as many devices.
        strategy: One of `strategies.STRATEGIES`.
    """
    per_host = mesh.num_devices // num_hosts
    tile = 1 / num_parts(layout, mesh.sizes)
    if strategy == SEND_RECV:
        received = per_host * tile
        return Arrival(Passing(num_hosts * received, received), 0.0)
    received = _tiles_of_host(layout, mesh.sizes, per_host) * tile
    sent = num_hosts * received if strategy == GATHERED else 1.0
    same = round(num_hosts * received)
    if strategy == GLOBAL_GATHERED and same > 1:
        # Of the ring through the hosts that get the same, what comes after all has been sent.
        received *= 1 + (same - 2 + received / (per_host * tile)) / same
    inside = tuple(
        axis for axis in copied_axes(layout, mesh) if per_host % math.prod(mesh.sizes[axis:]) == 0
    )
    return Arrival(Passing(sent, received), gather_s(num_bytes, layout, mesh, inside))


def _tiles_of_host(layout: Layout, sizes: tuple[int, ...], per_host: int) -> int:
    """Return how many different tiles the devices of a host have, of the host that has most."""
    split = sorted(used_axes(layout))
    places = itertools.product(*map(range, sizes))
    tiles = [tuple(place[axis] for axis in split) for place in places]
    return max(len(set(tiles[n : n + per_host])) for n in range(0, len(tiles), per_host))


def gather_s(
    num_bytes: int, layout: Layout, mesh: LogicalMesh, axes: tuple[int, ...] | None = None
) -> float:
    """Return the seconds to gather the copies of a tensor that came once.

    Args:
        num_bytes: Bytes of the whole tensor.
        layout: Its layout on the destination, nothing partial.
        mesh: The destination.
        axes: The axes along which it is gathered; by default all along which devices hold the same.
    """
    along = copied_axes(layout, mesh) if axes is None else axes
    tile = -(-num_bytes // num_parts(layout, mesh.sizes))
    return collective_time_s(ALL_GATHER, along, tile, mesh) if along else 0.0


def copied_axes(layout: Layout, mesh: LogicalMesh) -> tuple[int, ...]:
    """Return the axes along which devices hold the same tile.

    Args:
        layout: A layout on the mesh.
        mesh: The mesh.
    """
    split = used_axes(layout)
    return tuple(a for a, size in enumerate(mesh.sizes) if a not in split and size > 1)
