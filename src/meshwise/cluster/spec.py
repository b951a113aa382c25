"""A cluster: equal hosts, and the logical meshes that its devices can be seen as.

Devices are numbered host by host; a logical mesh is those numbers in row-major order.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.host import HostSpec, Link
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.cluster.read import cluster_fields
from meshwise.errors import ClusterError

AXIS_NAMES = ("x", "y", "z", "w", "v", "u")
# More axes give the planner more layouts than it gains from; a user may still ask for them.
MAX_AXES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal hosts, joined by a network in which links between hosts do not disturb each other.

    Attributes:
        name: For display.
        num_hosts: How many.
        host: Their kind: devices, in-host link, NIC.
    """

    name: str
    num_hosts: int
    host: HostSpec

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.num_hosts * self.host.num_devices

    @property
    def devices_per_host(self) -> int:
        """Devices of one host."""
        return self.host.num_devices

    @property
    def device(self) -> DeviceSpec:
        """The kind of every device."""
        return self.host.device

    @property
    def link(self) -> Link:
        """The link of one device inside its host."""
        return self.host.link

    @property
    def nic(self) -> Link:
        """The way out of one host."""
        return self.host.nic

    @classmethod
    def virtual(cls, text: str) -> Cluster:
        """A cluster of catalog hosts that need not be there: `8x p3.16xlarge`.

        Raises:
            ClusterError: the text is not understood or the host is not in the catalog.
        """
        given: Any = text
        if not isinstance(given, str):
            raise ClusterError(f"not a cluster: {text!r}; write it as '8x p3.16xlarge'")
        match = re.fullmatch(r"\s*(?:(\d+)\s*x\s*)?([A-Za-z][\w.\-]*)\s*", text)
        if match is None or (match[1] is not None and int(match[1]) < 1):
            raise ClusterError(
                f"not a cluster: {text!r}; write the number of hosts and their kind, "
                "as '8x p3.16xlarge'"
            )
        name = match[2].lower()
        if name not in HOSTS:
            raise ClusterError(f"no host {match[2]!r} in the catalog; known: {', '.join(HOSTS)}")
        count = int(match[1] or 1)
        return cls(name=f"{count}x {name}", num_hosts=count, host=HOSTS[name])

    @classmethod
    def from_file(cls, path: str | Path) -> Cluster:
        """Read a TOML description; `cluster.read` documents its keys.

        Raises:
            ClusterError: the file cannot be read, or a key is missing, unknown or wrong.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ClusterError(f"cannot read cluster file {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ClusterError(f"cluster file {path} is not TOML: {error}") from error
        name, num_hosts, host = cluster_fields(data, f"cluster file {path}")
        return cls(name=name, num_hosts=num_hosts, host=host)

    def mesh(self, shape: Sequence[int], names: Sequence[str] | None = None) -> LogicalMesh:
        """The first devices of the cluster as a logical mesh.

        Args:
            shape: Size of each axis, major to minor.
            names: One name per axis; `x`, `y`, `z`, ... if left out.

        Raises:
            ClusterError: the shape does not fit the cluster, or the names do not fit the shape.
        """
        shape = tuple(shape)
        if names is None:
            names = (*AXIS_NAMES, *(f"x{i}" for i in range(len(AXIS_NAMES), len(shape))))
            names = names[: len(shape)]
        if len(names) != len(shape) or len(set(names)) != len(names):
            raise ClusterError(
                f"mesh of shape {shape} needs {len(shape)} different axis names, got {list(names)}"
            )
        self._check_shape(shape)
        return LogicalMesh(
            axes=tuple(self._axis(name, shape, axis) for axis, name in enumerate(names)),
            device=self.device,
        )

    def mesh_shapes(self, num_devices: int | None = None) -> tuple[tuple[int, ...], ...]:
        """The views of `num_devices` devices (all by default) that are worth a try.

        All ordered factorisations into at most `MAX_AXES` axes, except those whose axes are the
        same as those of an earlier view in another order.

        Raises:
            ClusterError: the cluster has no such set of devices.
        """
        count = self.num_devices if num_devices is None else num_devices
        self._check_shape((count,))
        seen: set[tuple[tuple[int, float, float], ...]] = set()
        shapes: list[tuple[int, ...]] = []
        for shape in _factorisations(count, MAX_AXES):
            axes = self.mesh(shape).axes
            kinds = sorted((a.size, a.latency_s, a.link_bytes_per_s) for a in axes)
            if tuple(kinds) not in seen:
                seen.add(tuple(kinds))
                shapes.append(shape)
        return tuple(shapes)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        count = math.prod(shape)
        if not shape or any(size < 1 for size in shape):
            raise ClusterError(f"mesh shape {shape} must be one or more positive sizes")
        if count > self.num_devices:
            raise ClusterError(
                f"mesh shape {shape} needs {count} devices; cluster {self.name!r} has "
                f"{self.num_devices} ({self.num_hosts} hosts of {self.devices_per_host})"
            )
        if count > self.devices_per_host and count % self.devices_per_host:
            raise ClusterError(
                f"mesh shape {shape} has {count} devices; more than one host of cluster "
                f"{self.name!r} must be whole hosts of {self.devices_per_host}"
            )

    def _axis(self, name: str, shape: tuple[int, ...], axis: int) -> MeshAxis:
        """One axis; groups that leave a host share its NIC.

        A group in ring order leaves a host once, so the share is one over the number of groups
        that have members both in the host and outside.
        """
        stride = math.prod(shape[axis + 1 :])
        leaving: dict[int, int] = {}
        for first in range(math.prod(shape)):
            if first // stride % shape[axis]:
                continue
            group = range(first, first + shape[axis] * stride, stride)
            hosts = {device // self.devices_per_host for device in group}
            if len(hosts) > 1:
                for host in hosts:
                    leaving[host] = leaving.get(host, 0) + 1
        link = self.link
        if leaving:
            share = self.nic.bytes_per_s / max(leaving.values())
            link = Link(
                latency_s=max(self.nic.latency_s, link.latency_s),
                bytes_per_s=min(share, link.bytes_per_s),
            )
        return MeshAxis(
            name=name,
            size=shape[axis],
            latency_s=link.latency_s,
            link_bytes_per_s=link.bytes_per_s,
        )


def _factorisations(count: int, max_axes: int) -> list[tuple[int, ...]]:
    """Ordered factorisations into factors above one, few axes first."""
    divisors = [d for d in range(2, count + 1) if count % d == 0]
    found: list[tuple[int, ...]] = [(count,)]
    for num_axes in range(2, max_axes + 1):
        for head in itertools.product(divisors, repeat=num_axes - 1):
            rest, odd = divmod(count, math.prod(head))
            if not odd and rest > 1:
                found.append((*head, rest))
    return found
