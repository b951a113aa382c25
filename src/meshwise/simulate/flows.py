"""What moves between the hosts of two meshes when one micro-batch passes from one to the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from meshwise.cluster.spec import ClusterSpec
from meshwise.resharding.between import Passing
from meshwise.simulate.links import Flow, HostLinks

# Less is not sent: shares are rounded.
_ROUNDING = 1e-9


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
    passing: Passing | None = None,
) -> tuple[Flow, ...]:
    """Return flows that carry a tensor, spread evenly over the hosts of both sides.

    What a host of the destination does not get from those that have the tensor, it gets at the same
    time from another host of the destination: a chain passes on what arrives, chunk by chunk.  A
    flow is no faster than the devices that send and receive it.

    Args:
        cluster: The cluster.
        source: Hosts of the sender, and devices of each.
        destination: Hosts of the receiver, and devices of each.
        num_bytes: Bytes of one micro-batch in one direction.
        passing: How much of them passes; None where each passes once and comes in equal parts.
    """
    (left, send), (right, receive) = source, destination
    count = math.lcm(len(left), len(right))
    part = num_bytes / count if passing is None else num_bytes * passing.sent / count
    pairs = Counter(
        (left[n * len(left) // count], right[n * len(right) // count]) for n in range(count)
    )
    flows = [_flow(cluster, (a, send), (b, receive), many * part) for (a, b), many in pairs.items()]
    if passing is not None:
        rest = num_bytes * (passing.received - passing.sent / len(right))
        if rest > _ROUNDING * num_bytes:
            chain = zip(right, (*right[1:], right[0]), strict=True)
            flows += [_flow(cluster, (a, receive), (b, receive), rest) for a, b in chain]
    return tuple(flows)


def _flow(
    cluster: ClusterSpec, source: tuple[int, int], destination: tuple[int, int], num_bytes: float
) -> Flow:
    """Return a flow from a host with so many devices to another one."""
    (a, send), (b, receive) = source, destination
    one, two = cluster.host_at(a), cluster.host_at(b)
    if a == b:
        limit, latency_s = min(send, receive) * one.link.bytes_per_s, one.link.latency_s
    else:
        limit = min(one.alone_bytes_per_s(send), two.alone_bytes_per_s(receive))
        latency_s = max(max(h.nic.latency_s, h.link.latency_s) for h in (one, two))
    return Flow(a, b, num_bytes, latency_s, limit)
