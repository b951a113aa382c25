"""One kind of host: its devices, the link between them, and its way out."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.cluster.mesh import DeviceSpec


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
class HostSpec:
    """One kind of host.

    Attributes:
        name: As in the catalog.
        num_devices: Devices in the host.
        device: Their kind.
        link: What one device reaches towards the others of its host.
        nic: The way to other hosts, shared by all devices of the host.
    """

    name: str
    num_devices: int
    device: DeviceSpec
    link: Link
    nic: Link
