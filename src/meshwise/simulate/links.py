"""The links of hosts, and what flows through them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.errors import ClusterError, ProgramError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLinks:
    """What one host's flows share.

    Attributes:
        nic_bytes_per_s: Bandwidth of the network card in each direction: it is full duplex.
        link_bytes_per_s: Bandwidth of the links inside the host, for all flows that stay there.
    """

    nic_bytes_per_s: float
    link_bytes_per_s: float


class Flow(NamedTuple):
    """Bytes from one host to another, or within one.

    Attributes:
        source: Index of a host.
        destination: Index of a host; the same one for a flow through the links inside it.
        num_bytes: Bytes to move.
        latency_s: Seconds before the first byte moves; nothing is occupied meanwhile.
        limit_bytes_per_s: Rate that the flow cannot exceed even alone, as the link of one device.
    """

    source: int
    destination: int
    num_bytes: float
    latency_s: float = 0.0
    limit_bytes_per_s: float = math.inf


def check_links(host: int, links: HostLinks) -> None:
    """Check that the bandwidths of a host are possible.

    Args:
        host: The index of the host, for the message.
        links: Its links.

    Raises:
        ClusterError: A bandwidth is not a finite number above 0.
    """
    for rate in (links.nic_bytes_per_s, links.link_bytes_per_s):
        if not (rate > 0 and math.isfinite(rate)):
            raise ClusterError(f"host {host} has a bandwidth of {rate} bytes/s")


def check_flow(name: str, flow: Flow, num_hosts: int) -> None:
    """Check that the hosts of a flow exist, and that its numbers are possible.

    Args:
        name: Of what has the flow, for the message.
        flow: The flow.
        num_hosts: How many hosts there are.

    Raises:
        ProgramError: They are not.
    """
    if not (0 <= flow.source < num_hosts and 0 <= flow.destination < num_hosts):
        raise ProgramError(
            f"{name} has a flow from host {flow.source} to host {flow.destination}; there are "
            f"{num_hosts}"
        )
    if not (
        0 <= flow.num_bytes < math.inf
        and 0 <= flow.latency_s < math.inf
        and flow.limit_bytes_per_s > 0
    ):
        raise ProgramError(f"{name} has an impossible flow: {flow}")
