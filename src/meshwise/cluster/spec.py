"""A cluster: groups of equal hosts, its submeshes, and the logical meshes that they can be seen as.

Devices are numbered host by host; a logical mesh is those numbers in row-major order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from meshwise.cluster.description.cluster_file import cluster_fields
from meshwise.cluster.description.files import read_toml
from meshwise.cluster.description.host_table import host_table
from meshwise.cluster.description.profile import read_profile
from meshwise.cluster.host import HostGroup, HostSpec, Link, check_size, slowest
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh
from meshwise.cluster.submesh import Submesh, SubmeshKind
from meshwise.cluster.text import groups_of
from meshwise.cluster.views import MAX_AXES, axis_names, check_shape, factorisations
from meshwise.errors import ClusterError
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Hosts, joined by a network in which links between hosts do not disturb each other.

    Attributes:
        name: The name for messages.
        groups: Equal hosts that follow each other, in the order in which devices are numbered.
    """

    name: str
    groups: tuple[HostGroup, ...]

    def __post_init__(self) -> None:
        check_size(self.groups, f"cluster {self.name!r}")

    @property
    def is_mixed(self) -> bool:
        """Whether its hosts differ."""
        return any(group.host != self.groups[0].host for group in self.groups)

    @property
    def num_hosts(self) -> int:
        """Hosts in all."""
        return sum(group.count for group in self.groups)

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return sum(group.count * group.host.num_devices for group in self.groups)

    @property
    def host(self) -> HostSpec:
        """The kind of every host.

        Raises:
            ClusterError: hosts differ.
        """
        if self.is_mixed:
            raise ClusterError(
                f"the hosts of cluster {self.name!r} differ, so there is no one kind of host, "
                "device, link or NIC; take cluster.submesh(...).kind for a part, cluster.groups "
                "for the kinds, or cluster.slowest() to treat every host as the slowest"
            )
        return self.groups[0].host

    @property
    def devices_per_host(self) -> int:
        """Devices of one host; an error where hosts differ, as for `host`."""
        return self.host.num_devices

    @property
    def device(self) -> DeviceSpec:
        """The kind of every device; an error where hosts differ, as for `host`."""
        return self.host.device

    @property
    def link(self) -> Link:
        """The link of one device inside its host; an error where hosts differ, as for `host`."""
        return self.host.link

    @property
    def nic(self) -> Link:
        """All NICs of one host together; an error where hosts differ, as for `host`."""
        host = self.host
        return Link(latency_s=host.nic.latency_s, bytes_per_s=host.nics_bytes_per_s)

    @classmethod
    def virtual(cls, text: str) -> ClusterSpec:
        """Return a cluster of catalog hosts, which need not be there, see `cluster.text`.

        `8x p3.16xlarge`, `4x p3.16xlarge + 4x dgx-a100`, a TPU slice, `v5e-256`, or virtual CPU
        devices of one host, `8 cpu`.

        Raises:
            ClusterError: the text is not understood or the host is not in the catalog.
        """
        given = cast(object, text)
        if not isinstance(given, str):
            raise ClusterError(f"not a cluster: {text!r}; write it as '8x p3.16xlarge'")
        name, groups = groups_of(text)
        return cls(name=name, groups=groups)

    @classmethod
    def from_file(cls, path: str | Path) -> ClusterSpec:
        """Read a TOML description; `cluster.description.cluster_file` documents its keys.

        Raises:
            ClusterError: the file cannot be read, or a key is missing, unknown or wrong.
        """
        path = Path(path)
        name, groups = cluster_fields(read_toml(path), f"cluster file {path}", path.parent)
        return cls(name=name, groups=groups)

    @classmethod
    def from_profile(cls, path: str | Path) -> ClusterSpec:
        """Return the host of a profile of `meshwise calibrate`.

        Raises:
            ClusterError: the file cannot be read, or is no profile of this version.
        """
        profile = read_profile(path)
        group = HostGroup(count=1, host=profile.host)
        return cls(name=f"{profile.host.name}, profile of {profile.created}", groups=(group,))

    @classmethod
    def named(cls, text: str) -> ClusterSpec:
        """Return the cluster of a `.toml` file, of a `.json` profile, or of text as for `virtual`.

        Raises:
            ClusterError: there is no such cluster.
        """
        if text.lower().endswith(".toml"):
            return cls.from_file(text)
        if text.lower().endswith(".json"):
            return cls.from_profile(text)
        return cls.virtual(text)

    def table(self) -> dict[str, object]:
        """Return the description that `description.cluster_file` reads back.

        Each host stands in it with all its numbers: nothing refers to the catalog.
        """
        return {
            "name": self.name,
            "hosts": [
                {"count": group.count, "host": host_table(group.host)} for group in self.groups
            ],
        }

    def slowest(self) -> ClusterSpec:
        """As many equal hosts, each as slow in everything as the slowest; itself if all are equal.

        Where hosts have different numbers of devices, each keeps as many as the smallest has.
        """
        if not self.is_mixed:
            return self
        host = slowest([group.host for group in self.groups])
        group = HostGroup(count=self.num_hosts, host=host)
        return ClusterSpec(name=f"{self.name}, each as the slowest", groups=(group,))

    def host_at(self, number: int) -> HostSpec:
        """Return the kind of the host of a number.

        Raises:
            ClusterError: there is no such host.
        """
        left = number
        for group in self.groups:
            if 0 <= left < group.count:
                return group.host
            left -= group.count
        raise ClusterError(
            f"no host {number}; cluster {self.name!r} has hosts 0 to {self.num_hosts - 1}"
        )

    def kinds_of(self, first_host: int, num_hosts: int) -> list[HostSpec]:
        """Return the kinds of hosts that follow each other, as many as groups are among them.

        Args:
            first_host: Number of the first host.
            num_hosts: The number of hosts.
        """
        found: list[HostSpec] = []
        start = 0
        for group in self.groups:
            if start < first_host + num_hosts and first_host < start + group.count:
                found.append(group.host)
            start += group.count
        return found

    # -- parts ------------------------------------------------------------------------------------

    def submesh(
        self,
        first_host: int,
        num_hosts: int,
        first_device: int = 0,
        num_devices: int | None = None,
    ) -> Submesh:
        """Return the same devices of some hosts that follow each other.

        Where the hosts differ, all are priced as the slowest: least memory, lowest rates and
        bandwidths, highest latencies.

        Args:
            first_host: Number of the first host.
            num_hosts: The number of hosts.
            first_device: Number of the first device in each of them.
            num_devices: Devices of each of them; None for all from `first_device` on,
                as far as each of the hosts has them.

        Raises:
            ClusterError: the cluster has not these hosts, or a host not these devices.
        """
        if num_hosts < 1 or first_host < 0 or first_host + num_hosts > self.num_hosts:
            raise ClusterError(
                f"submesh of {counted(num_hosts, 'host')} from host {first_host} on; cluster "
                f"{self.name!r} has hosts 0 to {self.num_hosts - 1}, and a submesh at least one"
            )
        host = slowest(self.kinds_of(first_host, num_hosts))
        count = host.num_devices - first_device if num_devices is None else num_devices
        if count < 1 or first_device < 0 or first_device + count > host.num_devices:
            raise ClusterError(
                f"submesh of {counted(count, 'device')} a host from device {first_device} on; its "
                f"hosts have {counted(host.num_devices, 'device')}, and a submesh at least one"
            )
        kind = SubmeshKind(host=host, num_hosts=num_hosts, devices_per_host=count)
        return Submesh(kind=kind, first_host=first_host, first_device=first_device)

    def submeshes(
        self, *, every: bool = False, num_hosts: Collection[int] | None = None
    ) -> tuple[Submesh, ...]:
        """Return the places at which a stage may lie.

        Those of the paper: 1, 2, 4, ... devices of one host, each size at multiples of itself,
        and all devices of n hosts that follow each other.  Hosts that differ may be in one; those
        with more devices than the fewest of it leave the others idle.

        Args:
            every: All blocks: any number of hosts, any number of devices of each, anywhere.
            num_hosts: Only those of so many hosts; None for all.

        Source: Alpa section 5.2, docs/facts.md section 2.
        """
        return tuple(self._places(every, num_hosts))

    def submesh_kinds(self, *, every: bool = False) -> tuple[SubmeshKind, ...]:
        """Return the different kinds among `submeshes`, each once, in their order."""
        if not self.is_mixed:
            # A kind of equal hosts does not depend on its place.
            host, hosts = self.host, range(1, self.num_hosts + 1)
            blocks = [
                (n, m) for n in hosts for m in self._sizes(host.num_devices, every, is_one=n == 1)
            ]
            return tuple(SubmeshKind(host=host, num_hosts=n, devices_per_host=m) for n, m in blocks)
        return tuple(dict.fromkeys(place.kind for place in self._places(every)))

    def device_numbers(self, submesh: Submesh) -> tuple[int, ...]:
        """Return the numbers of the devices of a submesh, in the order of its logical meshes.

        Args:
            submesh: A part of this cluster.
        """
        starts = self.host_starts()
        return tuple(
            starts[host] + device for host in submesh.hosts for device in submesh.host_devices
        )

    def host_starts(self) -> list[int]:
        """Return the number of the first device of each host."""
        starts: list[int] = []
        start = 0
        for group in self.groups:
            size = group.host.num_devices
            starts += range(start, start + group.count * size, size)
            start += group.count * size
        return starts

    def _places(self, every: bool, wanted: Collection[int] | None = None) -> Iterator[Submesh]:
        for num_hosts in range(1, self.num_hosts + 1):
            if wanted is not None and num_hosts not in wanted:
                continue
            for first_host in range(self.num_hosts - num_hosts + 1):
                host = slowest(self.kinds_of(first_host, num_hosts))
                total = host.num_devices
                for size in self._sizes(total, every, is_one=num_hosts == 1):
                    kind = SubmeshKind(host=host, num_hosts=num_hosts, devices_per_host=size)
                    for first in range(0, total - size + 1, 1 if every else size):
                        yield Submesh(kind=kind, first_host=first_host, first_device=first)

    @staticmethod
    def _sizes(num_devices: int, every: bool, *, is_one: bool) -> list[int]:
        """Return devices of each host that a submesh of one or of several hosts may have."""
        if every:
            return list(range(1, num_devices + 1))
        if not is_one:
            return [num_devices]
        powers = [2**p for p in range(num_devices.bit_length())]
        return sorted({*powers, num_devices})

    # -- the whole cluster as one mesh ------------------------------------------------------------

    def mesh(self, shape: Sequence[int], names: Sequence[str] | None = None) -> LogicalMesh:
        """Return the first devices of the cluster as a logical mesh; an error where hosts differ.

        Args:
            shape: Size of each axis, major to minor.
            names: One name per axis; `x`, `y`, `z`, ... if left out.

        Raises:
            ClusterError: the shape does not fit the cluster, or the names do not fit the shape.
        """
        shape = tuple(shape)
        names = axis_names(shape, names)
        return self._first(shape).mesh(shape, names)

    def mesh_shapes(self, num_devices: int | None = None) -> tuple[tuple[int, ...], ...]:
        """Return the views of some devices (all by default): shapes of at most `MAX_AXES` axes.

        All orders of axes are views of their own: a dim that several axes split is tiled in their
        order, so that plans differ even where the axes are alike.  An error where hosts differ.

        Raises:
            ClusterError: the cluster has no such set of devices.
        """
        count = self.num_devices if num_devices is None else num_devices
        self._first((count,))
        return tuple(factorisations(count, MAX_AXES))

    def _first(self, shape: tuple[int, ...]) -> SubmeshKind:
        """Return the first devices: some of one host, or whole hosts."""
        check_shape(shape)
        count, size = math.prod(shape), self.devices_per_host
        if count > self.num_devices:
            raise ClusterError(
                f"mesh shape {shape} needs {counted(count, 'device')}; cluster {self.name!r} has "
                f"{self.num_devices} ({counted(self.num_hosts, 'host')} of {size})"
            )
        if count > size and count % size:
            raise ClusterError(
                f"mesh shape {shape} has {counted(count, 'device')}; more than one host of cluster "
                f"{self.name!r} must be whole hosts of {size}"
            )
        num_hosts = max(count // size, 1)
        return SubmeshKind(host=self.host, num_hosts=num_hosts, devices_per_host=min(count, size))
