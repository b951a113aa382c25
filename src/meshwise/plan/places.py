"""Where in a cluster the devices of stages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.plan.stage import Stage
from meshwise.units import counted


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


def stage_hosts(stage: Stage, cluster: ClusterSpec) -> StageHosts | None:
    """Return the devices of a stage; None if the cluster does not have them."""
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
    if any(h.num_devices < left + num_devices for h in cluster.kinds_of(host, num_hosts)):
        return None
    return StageHosts(hosts=hosts, first_device=left, num_devices=num_devices)


def placed(stage: Stage, cluster: ClusterSpec) -> StageHosts:
    """Return the devices of a stage that `check_places` has found in the cluster."""
    place = stage_hosts(stage, cluster)
    assert place is not None
    return place


def device_memory_bytes(stage: Stage, cluster: ClusterSpec) -> int:
    """Return the bytes of the smallest device that a stage of a cluster has."""
    hosts = placed(stage, cluster).hosts
    return min(h.device.memory_bytes for h in cluster.kinds_of(hosts.start, len(hosts)))


def check_places(stages: Sequence[Stage], cluster: ClusterSpec) -> None:
    """Check that a cluster has the devices of every stage, and none of them twice.

    Args:
        stages: The stages of a plan.
        cluster: The cluster that they name devices of.

    Raises:
        PlanError: naming the stage that has no place.
    """
    owner: dict[tuple[int, int], int] = {}
    known: set[tuple[int, tuple[int, int], LogicalMesh]] = set()
    for number, stage in enumerate(stages):
        hosts, devices = stage.submesh
        if stage.mesh.num_devices != stage.num_devices:
            raise PlanError(
                f"field 'stages[{number}].mesh': {counted(stage.mesh.num_devices, 'device')}, but "
                f"'submesh' has {hosts} x {devices}"
            )
        first = stage_hosts(stage, cluster)
        if first is None:
            raise PlanError(
                f"field 'stages[{number}]': {counted(devices, 'device')} of each of "
                f"{counted(hosts, 'host')} from device {stage.first_device} on are not in cluster "
                f"{cluster.name!r} of {counted(cluster.num_hosts, 'host')} and "
                f"{counted(cluster.num_devices, 'device')}; plan for that "
                "cluster"
            )
        if _place(stage) in known:
            continue
        known.add(_place(stage))
        for host in first.hosts:
            for device in range(first.first_device, first.first_device + devices):
                other = owner.setdefault((host, device), number)
                if other != number:
                    raise PlanError(
                        f"field 'stages[{number}].first_device': device {device} of host {host} "
                        f"belongs to stage {other} too"
                    )


def _place(stage: Stage) -> tuple[int, tuple[int, int], LogicalMesh]:
    """Return what stages of one mesh have in common."""
    return stage.first_device, stage.submesh, stage.mesh
