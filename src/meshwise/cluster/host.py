"""One kind of host: its devices, the link between them, and its ways out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError
from meshwise.units import counted

# Larger than any that was built; beyond it a number is a mistake, and tables would not end.
MAX_DEVICES = 131072


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection, full duplex.

    Attributes:
        latency_s: Time of an empty message.
        bytes_per_s: Reached bandwidth in one direction.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRate:
    """What the makers promise, of which `HostSpec` and `DeviceSpec` say what is reached.

    Attributes:
        flop_per_s: Peak rate of dense products, pairs (dtype name, FLOP/s).
        memory_bytes: Memory of one device.
        memory_bytes_per_s: Bandwidth of this memory.
        link_bytes_per_s: Bandwidth of one device to others of its host.
        nic_bytes_per_s: Bandwidth of one NIC.
    """

    flop_per_s: tuple[tuple[str, float], ...]
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float
    nic_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """One kind of host.

    Devices share the NICs evenly: device d of D is attached to the NICs of which its share is,
    so with as many NICs as devices each has its own.

    Attributes:
        name: The name, as in the catalog.
        num_devices: Devices in the host.
        device: The kind of the devices.
        link: The link of one device to the others of its host.
        nic: One way to other hosts.
        num_nics: NICs of the host.
        source: The origin of the numbers of links and NICs.
        peak: The rates that the makers promise; None where only what is reached is known.
    """

    name: str
    num_devices: int
    device: DeviceSpec
    link: Link
    nic: Link
    num_nics: int = 1
    source: str = ""
    peak: PeakRate | None = None

    @property
    def nics_bytes_per_s(self) -> float:
        """What all NICs of the host reach together."""
        return self.num_nics * self.nic.bytes_per_s

    def fair_bytes_per_s(self, num_devices: int) -> float:
        """Return what devices reach together towards other hosts while all others send.

        Args:
            num_devices: The number of devices.
        """
        if num_devices == self.num_devices:
            return self.nics_bytes_per_s
        return self.nics_bytes_per_s * num_devices / self.num_devices

    def alone_bytes_per_s(self, num_devices: int) -> float:
        """Return what neighbouring devices reach together while no other device sends.

        They reach the NICs that they are attached to, and no more than their links carry.
        """
        attached = -(-num_devices * self.num_nics // self.num_devices)
        nics = min(max(attached, 1), self.num_nics) * self.nic.bytes_per_s
        return min(nics, num_devices * self.link.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """Equal hosts that follow each other in a cluster.

    Attributes:
        count: The number of hosts.
        host: Their kind.
    """

    count: int
    host: HostSpec


def slowest(hosts: Sequence[HostSpec]) -> HostSpec:
    """Return a kind of host as slow in everything as the slowest of `hosts`.

    Smallest number of devices, least memory, lowest rate for each dtype, lowest bandwidths,
    highest latencies.  A NIC is a share of the slowest host's NICs, so that neither one device nor
    a whole host reaches more than it has.

    Raises:
        ClusterError: there are no hosts.
    """
    if not hosts:
        raise ClusterError("no hosts, so there is no slowest one; name at least one host")
    kinds = list(dict.fromkeys(hosts))
    if len(kinds) == 1:
        return kinds[0]
    num_devices = min(kind.num_devices for kind in kinds)
    num_nics = max(kind.num_nics for kind in kinds)
    fair = min(kind.fair_bytes_per_s(num_devices) for kind in kinds)
    return HostSpec(
        name="slowest of " + ", ".join(dict.fromkeys(kind.name for kind in kinds)),
        num_devices=num_devices,
        device=_slowest_device([kind.device for kind in kinds]),
        link=_slower([kind.link for kind in kinds]),
        nic=Link(
            latency_s=max(kind.nic.latency_s for kind in kinds),
            bytes_per_s=fair / num_nics,
        ),
        num_nics=num_nics,
        source="the worst number of each host",
    )


def _slower(links: Sequence[Link]) -> Link:
    return Link(
        latency_s=max(link.latency_s for link in links),
        bytes_per_s=min(link.bytes_per_s for link in links),
    )


def _slowest_device(devices: Sequence[DeviceSpec]) -> DeviceSpec:
    kinds = list(dict.fromkeys(devices))
    if len(kinds) == 1:
        return kinds[0]
    dtypes = sorted({dtype for kind in kinds for dtype, _ in kind.flop_per_s})
    worst = DeviceSpec(
        name="slowest of " + ", ".join(dict.fromkeys(kind.name for kind in kinds)),
        memory_bytes=min(kind.memory_bytes for kind in kinds),
        memory_bytes_per_s=min(kind.memory_bytes_per_s for kind in kinds),
        flop_per_s=tuple((dtype, min(kind.rate(dtype) for kind in kinds)) for dtype in dtypes),
        source="the worst number of each device",
        dense_times=_slowest_times(kinds),
        host_bytes_per_s=min(kind.host_bytes_per_s for kind in kinds),
        host_memory_bytes=min(kind.host_memory_bytes for kind in kinds),
    )
    # Often one of them is the slowest in everything: plans for it are then plans for all.
    return next((kind for kind in kinds if _is_as(kind, worst, dtypes)), worst)


def _is_as(kind: DeviceSpec, worst: DeviceSpec, dtypes: Sequence[str]) -> bool:
    """Return whether a device has the worst number of each."""
    return (
        kind.memory_bytes == worst.memory_bytes
        and kind.memory_bytes_per_s == worst.memory_bytes_per_s
        and all(kind.rate(dtype) == worst.rate(dtype) for dtype in dtypes)
        and kind.dense_times == worst.dense_times
        and kind.host_bytes_per_s == worst.host_bytes_per_s
        and kind.host_memory_bytes == worst.host_memory_bytes
    )


def _slowest_times(
    kinds: Sequence[DeviceSpec],
) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
    """Return at each measured size the longest time that any of the kinds takes."""
    sizes: dict[str, set[float]] = {}
    for kind in kinds:
        for dtype, points in kind.dense_times:
            sizes.setdefault(dtype, set()).update(flop for flop, _ in points)
    return tuple(
        (
            dtype,
            tuple(
                (flop, max(kind.dense_s(flop, dtype) for kind in kinds)) for flop in sorted(all_)
            ),
        )
        for dtype, all_ in sorted(sizes.items())
    )


def check_size(groups: Sequence[HostGroup], where: str) -> None:
    """Refuse a cluster of no hosts, or of more devices than there can be.

    Args:
        groups: Its hosts.
        where: The name of its description, for errors.

    Raises:
        ClusterError: It is one of these.
    """
    if not groups:
        raise ClusterError(f"{where}: a cluster needs at least one group of hosts, got none")
    for group in groups:
        if group.count < 1 or group.host.num_devices < 1 or group.host.num_nics < 1:
            raise ClusterError(
                f"{where}: a group needs at least one host with a device and a NIC, got "
                f"{counted(group.count, 'host')} {group.host.name!r} with "
                f"{counted(group.host.num_devices, 'device')} "
                f"and {counted(group.host.num_nics, 'NIC')}"
            )
    num_devices = sum(group.count * group.host.num_devices for group in groups)
    if num_devices > MAX_DEVICES:
        raise ClusterError(
            f"{where}: {counted(num_devices, 'device')}; at most {MAX_DEVICES} can be planned for"
        )
