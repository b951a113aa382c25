"""Where in a cluster the devices of a stage are."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.cluster.spec import Cluster
from meshwise.inter.pipeline_plan import PipelineStage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHosts:
    """The devices of one stage.

    Attributes:
        hosts: Their hosts.
        first_device: The first of them in each host.
        num_devices: How many in each host.
    """

    hosts: range
    first_device: int
    num_devices: int


def stage_hosts(stage: PipelineStage, cluster: Cluster) -> StageHosts | None:
    """The devices of a stage; None if the cluster does not have them."""
    num_hosts, num_devices = stage.submesh
    left, host = stage.first_device, 0
    for group in cluster.groups:
        size = group.host.num_devices
        skipped = min(left // size, group.count)
        host, left = host + skipped, left - skipped * size
        if skipped < group.count:
            break
    hosts = range(host, host + num_hosts)
    if hosts.stop > cluster.num_hosts:
        return None
    if any(cluster.host_at(h).num_devices < left + num_devices for h in hosts):
        return None
    return StageHosts(hosts=hosts, first_device=left, num_devices=num_devices)
