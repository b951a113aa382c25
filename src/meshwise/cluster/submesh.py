"""Parts of a cluster: what their costs depend on, and where they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.host import HostSpec
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh
from meshwise.cluster.views import MAX_AXES, axis_names, check_shape, logical_mesh, view_shapes
from meshwise.errors import ClusterError
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmeshKind:
    """A block of equal hosts, wherever it lies: all that its costs depend on.

    Attributes:
        host: The kind of each host; where they differ, one as slow as the slowest of them.
        num_hosts: The number of hosts.
        devices_per_host: Devices of each host that belong to the block, at most all.
    """

    host: HostSpec
    num_hosts: int
    devices_per_host: int

    @property
    def shape(self) -> tuple[int, int]:
        """Hosts, devices per host."""
        return self.num_hosts, self.devices_per_host

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.num_hosts * self.devices_per_host

    @property
    def device(self) -> DeviceSpec:
        """The kind of every device; of different ones the worst of each number."""
        return self.host.device

    def mesh(self, shape: Sequence[int], names: Sequence[str] | None = None) -> LogicalMesh:
        """Return all devices of the block as a logical mesh.

        Args:
            shape: Size of each axis, major to minor.
            names: One name per axis; `x`, `y`, `z`, ... if left out.

        Raises:
            ClusterError: the shape has not as many devices as the block, or the names do not fit.
        """
        shape = tuple(shape)
        names = axis_names(shape, names)
        check_shape(shape)
        if math.prod(shape) != self.num_devices:
            raise ClusterError(
                f"mesh shape {shape} has {counted(math.prod(shape), 'device')}; the submesh has "
                f"{self.num_devices} ({counted(self.num_hosts, 'host')} with "
                f"{self.devices_per_host} each)"
            )
        return logical_mesh(self.host, self.devices_per_host, shape, names)

    def mesh_shapes(self, max_axes: int = MAX_AXES) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that are worth a try: factorisations that differ in what they cost."""
        return view_shapes(self.host, self.devices_per_host, self.num_devices, max_axes)

    def logical_meshes(self, max_axes: int = MAX_AXES) -> tuple[LogicalMesh, ...]:
        """Return the logical meshes that are worth a try, one for each of `mesh_shapes`."""
        return tuple(self.mesh(shape) for shape in self.mesh_shapes(max_axes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Submesh:
    """A block of hosts at its place in a cluster.

    Attributes:
        kind: The kind of submesh, on which its costs depend.
        first_host: Number of its first host in the cluster.
        first_device: Number of its first device in each of its hosts.
    """

    kind: SubmeshKind
    first_host: int
    first_device: int

    @property
    def hosts(self) -> range:
        """Numbers of its hosts in the cluster."""
        return range(self.first_host, self.first_host + self.kind.num_hosts)

    @property
    def host_devices(self) -> range:
        """Numbers of its devices in each of its hosts."""
        return range(self.first_device, self.first_device + self.kind.devices_per_host)

    @property
    def shape(self) -> tuple[int, int]:
        """Hosts, devices per host."""
        return self.kind.shape

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.kind.num_devices
