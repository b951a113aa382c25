"""Kinds of submeshes of clusters with equal hosts, and of hosts that differ, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.errors import ClusterError
from meshwise.inter.stages.submeshes import StageSubmesh


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """One host of a mixed cluster.

    Attributes:
        kind: Hosts of one kind cost the same.
        num_devices: Devices.
        memory_bytes: Memory of a device.
    """

    kind: str
    num_devices: int
    memory_bytes: float


def uniform_submeshes(
    num_hosts: int,
    devices_per_host: int,
    memory_bytes: float,
    *,
    all_host_counts: bool = False,
    largest_num_hosts: int | None = None,
) -> tuple[StageSubmesh, ...]:
    """(1, 2^p) up to one host, then whole hosts.

    Args:
        num_hosts: Hosts of the cluster.
        devices_per_host: Devices of each, a power of two.
        memory_bytes: Memory of a device.
        all_host_counts: Every number of hosts, as in the paper; otherwise powers of two and the
            whole cluster.
        largest_num_hosts: No submesh of more hosts.

    Raises:
        ClusterError: devices of a host are no power of two: not every choice of such shapes then
            tiles the cluster; `mixed_submeshes` keeps to positions instead.

    Source: Alpa section 5.2.
    """
    if devices_per_host < 1 or devices_per_host & (devices_per_host - 1):
        raise ClusterError(
            f"hosts of {devices_per_host} devices: shapes (1, 2^p) tile hosts of 2^p devices only; "
            "use mixed_submeshes"
        )
    shapes = [(1, 1 << p) for p in range(devices_per_host.bit_length())]
    most = min(num_hosts, largest_num_hosts or num_hosts)
    shapes += [(n, devices_per_host) for n in _host_counts(num_hosts, most, all_host_counts)]
    return tuple(
        StageSubmesh(num_hosts=n, devices_per_host=m, memory_bytes=memory_bytes) for n, m in shapes
    )


def mixed_submeshes(
    hosts: Sequence[HostKind], *, all_shapes: bool = False, largest_num_hosts: int | None = None
) -> tuple[StageSubmesh, ...]:
    """Kinds of submeshes of hosts that differ, each with the first devices it may have.

    A stage takes devices in the cluster's order: a run of devices inside one host, or a run of
    whole hosts with equally many devices.  Runs over the same sequence of kinds of hosts are one
    kind of submesh.

    Args:
        hosts: The hosts in order; devices are numbered host by host.
        all_shapes: Every number of devices in a host and of hosts; otherwise powers of two, the
            whole host, and all hosts.
        largest_num_hosts: No submesh of more hosts.
    """
    most = min(len(hosts), largest_num_hosts or len(hosts))
    offsets = [0]
    for host in hosts:
        offsets.append(offsets[-1] + host.num_devices)
    starts: dict[tuple[int, int, tuple[str, ...], float], list[int]] = {}
    for i, host in enumerate(hosts):
        for size in range(1, host.num_devices + 1):
            if not all_shapes and size & (size - 1) and size != host.num_devices:
                continue
            # Powers of two begin at multiples of themselves, so that they leave no odd holes.
            step = 1 if all_shapes else size
            for offset in range(0, host.num_devices - size + 1, step):
                key = (1, size, (host.kind,), host.memory_bytes)
                starts.setdefault(key, []).append(offsets[i] + offset)
    for count in _host_counts(len(hosts), most, all_shapes):
        for i in range(len(hosts) - count + 1):
            run = hosts[i : i + count]
            if len({h.num_devices for h in run}) == 1:
                memory = min(h.memory_bytes for h in run)
                key = (count, run[0].num_devices, tuple(h.kind for h in run), memory)
                starts.setdefault(key, []).append(offsets[i])
    return tuple(
        StageSubmesh(
            num_hosts=n, devices_per_host=m, memory_bytes=memory, host_kinds=k, starts=tuple(s)
        )
        for (n, m, k, memory), s in starts.items()
    )


def _host_counts(num_hosts: int, most: int, every: bool) -> list[int]:
    """Numbers of hosts above one."""
    return [n for n in range(2, most + 1) if every or not n & (n - 1) or n == num_hosts]
