"""Unit tasks as hosts see them: between meshes, network cards are what is short.

Every host has one full-duplex card; links between hosts do not disturb each other, and what passes
inside a host is neglected.  A host that has a box is not sent it.

Source: AlpaComm sections 2 and 3 (docs/facts.md section 3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.graph.layout import Layout
from meshwise.resharding.cross_mesh.unit_tasks import UnitTask, unit_tasks
from meshwise.resharding.tiles import boxes, num_elements
from meshwise.units import counted


class HostTask(NamedTuple):
    """A box of a tensor that some hosts have and some need.

    Attributes:
        num_bytes: Bytes of the box.
        senders: Hosts that have it, ascending.
        receivers: Hosts that need it and do not have it, ascending.
        devices: For each receiver how many of its devices need it.
    """

    num_bytes: float
    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedMesh:
    """A logical mesh and where its devices are.

    Attributes:
        sizes: Sizes of its axes, major to minor.
        hosts: The host of each device, row-major.
    """

    sizes: tuple[int, ...]
    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a mesh with other devices than places.

        Raises:
            ValueError: there are not as many hosts as devices.
        """
        if math.prod(self.sizes) != len(self.hosts):
            raise ValueError(
                f"a mesh of sizes {self.sizes} has {counted(math.prod(self.sizes), 'device')}, "
                f"got hosts of {len(self.hosts)}"
            )


def hosted_mesh(num_hosts: int, devices_per_host: int, first_host: int = 0) -> HostedMesh:
    """Return the mesh (hosts, devices of a host).

    Args:
        num_hosts: How many hosts.
        devices_per_host: Devices of each.
        first_host: The number of the first; the others follow.
    """
    hosts = [h for h in range(first_host, first_host + num_hosts) for _ in range(devices_per_host)]
    return HostedMesh(sizes=(num_hosts, devices_per_host), hosts=tuple(hosts))


def host_task(unit: UnitTask, hosts: Sequence[int], itemsize: int) -> HostTask | None:
    """Return a unit task as hosts see it; None if each host that needs the box has it.

    Args:
        unit: The unit task.
        hosts: For each device the number of its host.
        itemsize: Bytes of an element.
    """
    senders = {hosts[device] for device in unit.senders}
    needing = Counter(hosts[d] for d in unit.receivers if hosts[d] not in senders)
    if not needing:
        return None
    receivers = tuple(sorted(needing))
    return HostTask(
        num_bytes=float(itemsize * num_elements(unit.box)),
        senders=tuple(sorted(senders)),
        receivers=receivers,
        devices=tuple(needing[host] for host in receivers),
    )


def host_tasks(
    shape: Sequence[int],
    itemsize: int,
    source: tuple[Layout, HostedMesh],
    destination: tuple[Layout, HostedMesh],
) -> tuple[HostTask, ...]:
    """Return what of a tensor passes between hosts, by place in the tensor.

    Args:
        shape: Shape of the tensor; meshes need not divide it.
        itemsize: Bytes of an element.
        source: Its layout on the source, and the devices there.
        destination: Its layout on the destination, and the devices there, none of the source's.

    Raises:
        ValueError: a layout does not fit.
    """
    given, wanted = (boxes(shape, layout, mesh.sizes) for layout, mesh in (source, destination))
    hosts = (*source[1].hosts, *destination[1].hosts)
    units = unit_tasks(dict(enumerate(given)), dict(enumerate(wanted, len(given))))
    found = (host_task(unit, hosts, itemsize) for unit in units)
    return tuple(task for task in found if task is not None)
