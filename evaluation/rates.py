"""Clusters whose devices multiply at a given rate."""

from __future__ import annotations

import dataclasses

from meshwise.cluster.host import HostSpec
from meshwise.cluster.spec import ClusterSpec


def with_rate(cluster: ClusterSpec, dtype: str, flop_per_s: float, why: str) -> ClusterSpec:
    """Return the cluster, with another reached rate of dense products of one dtype.

    Args:
        cluster: Any cluster.
        dtype: Of the products.
        flop_per_s: What each device reaches.
        why: Where the rate comes from.
    """

    def changed(host: HostSpec) -> HostSpec:
        rates = tuple((d, flop_per_s if d == dtype else r) for d, r in host.device.flop_per_s)
        source = f"{host.device.source}; {dtype} products: {why}"
        device = dataclasses.replace(host.device, flop_per_s=rates, source=source)
        return dataclasses.replace(host, device=device)

    groups = tuple(dataclasses.replace(g, host=changed(g.host)) for g in cluster.groups)
    return dataclasses.replace(cluster, groups=groups)


def first_devices(cluster: ClusterSpec, count: int) -> ClusterSpec:
    """Some devices of one host, alone.

    Args:
        cluster: Its first host is meant.
        count: How many of the host's devices; they keep their share of its NICs, at least one.
    """
    group = cluster.groups[0]
    num_nics = max(group.host.num_nics * count // group.host.num_devices, 1)
    host = dataclasses.replace(group.host, num_devices=count, num_nics=num_nics)
    groups = (dataclasses.replace(group, count=1, host=host),)
    return ClusterSpec(name=f"{count} of the devices of a {group.host.name}", groups=groups)
