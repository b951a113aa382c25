"""Virtual CPU devices as a cluster of one host."""

from __future__ import annotations

from meshwise.cluster.cpu_host import HOST_MEMORY_BYTES, cpu_host
from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.text import cpu_name


def cpu_cluster(num_devices: int, *, host_memory_bytes: int = HOST_MEMORY_BYTES) -> ClusterSpec:
    """Return one host whose cores run virtual devices.

    Args:
        num_devices: Virtual devices.
        host_memory_bytes: Memory that the devices share.

    Raises:
        ClusterError: There is not at least one device.
    """
    host = cpu_host(num_devices, host_memory_bytes=host_memory_bytes)
    group = HostGroup(count=1, host=host)
    return ClusterSpec(name=cpu_name(num_devices), groups=(group,))
