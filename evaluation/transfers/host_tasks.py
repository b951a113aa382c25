"""Unit tasks as hosts see them: between meshes, network cards are what is short.

Every host has one full-duplex card; links between hosts do not disturb each other, and what passes
inside a host is neglected.  The hosts of the two meshes are others.

Source: AlpaComm sections 2 and 3 (docs/facts.md section 3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluation.transfers.unit_tasks import unit_tasks
from meshwise.graph.layout import Layout
from meshwise.resharding.tiles import boxes, num_elements


class HostTask(NamedTuple):
    """A box of a tensor that some hosts have and some need.

    Attributes:
        num_bytes: Of the box.
        senders: Hosts that have it, ascending.
        receivers: Hosts that need it, ascending.
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
        sizes: Of its axes, major to minor.
        hosts: Host of each device, row-major.
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
                f"a mesh of sizes {self.sizes} has {math.prod(self.sizes)} devices, "
                f"got hosts of {len(self.hosts)}"
            )


def hosted_mesh(num_hosts: int, devices_per_host: int, first_host: int = 0) -> HostedMesh:
    """The mesh (hosts, devices of a host)."""
    hosts = [h for h in range(first_host, first_host + num_hosts) for _ in range(devices_per_host)]
    return HostedMesh(sizes=(num_hosts, devices_per_host), hosts=tuple(hosts))


def host_tasks(
    shape: Sequence[int],
    itemsize: int,
    source: tuple[Layout, HostedMesh],
    destination: tuple[Layout, HostedMesh],
) -> tuple[HostTask, ...]:
    """The unit tasks of a tensor, in the order of their places in it.

    Args:
        shape: Of the tensor; meshes need not divide it.
        itemsize: Bytes of an element.
        source: How it lies, and where.
        destination: How it shall lie, and where.

    Raises:
        ValueError: the meshes share a host, or a layout does not fit.
    """
    shared = set(source[1].hosts) & set(destination[1].hosts)
    if shared:
        raise ValueError(f"hosts {sorted(shared)} are of both meshes")
    given, wanted = (boxes(shape, layout, mesh.sizes) for layout, mesh in (source, destination))
    first = len(given)
    found: list[HostTask] = []
    for task in unit_tasks(dict(enumerate(given)), dict(enumerate(wanted, first))):
        needing = Counter(destination[1].hosts[d - first] for d in task.receivers)
        receivers = tuple(sorted(needing))
        found.append(
            HostTask(
                num_bytes=float(itemsize * num_elements(task.box)),
                senders=tuple(sorted({source[1].hosts[d] for d in task.senders})),
                receivers=receivers,
                devices=tuple(needing[host] for host in receivers),
            )
        )
    return tuple(found)
