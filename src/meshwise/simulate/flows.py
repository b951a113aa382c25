"""What moves between the hosts of two meshes when one micro-batch passes from one to the other."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.cluster.spec import ClusterSpec
from meshwise.simulate.actions import Flow, HostLinks


def host_links(cluster: ClusterSpec) -> list[HostLinks]:
    """Return links of every host, for the simulator."""
    hosts = [cluster.host_at(h) for h in range(cluster.num_hosts)]
    return [
        HostLinks(
            nic_bytes_per_s=h.nics_bytes_per_s,
            link_bytes_per_s=h.link.bytes_per_s * h.num_devices,
        )
        for h in hosts
    ]


def flows_between(
    cluster: ClusterSpec,
    source: tuple[Sequence[int], int],
    destination: tuple[Sequence[int], int],
    num_bytes: float,
) -> tuple[Flow, ...]:
    """Return flows that carry each byte once, spread evenly over the hosts of both sides.

    A flow is no faster than the devices that send and receive it.

    Args:
        cluster: The cluster.
        source: Hosts of the sender, and devices of each.
        destination: Hosts of the receiver, and devices of each.
        num_bytes: Bytes of one micro-batch in one direction.
    """
    (left, send), (right, receive) = source, destination
    count = max(len(left), len(right))
    flows: list[Flow] = []
    for n in range(count):
        a, b = left[n * len(left) // count], right[n * len(right) // count]
        one, two = cluster.host_at(a), cluster.host_at(b)
        if a == b:
            limit, latency_s = min(send, receive) * one.link.bytes_per_s, one.link.latency_s
        else:
            limit = min(one.alone_bytes_per_s(send), two.alone_bytes_per_s(receive))
            latency_s = max(max(h.nic.latency_s, h.link.latency_s) for h in (one, two))
        flows.append(Flow(a, b, num_bytes / count, latency_s, limit))
    return tuple(flows)
