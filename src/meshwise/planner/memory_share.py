"""A plan for a part of the memory, as when a compiler needs more than was predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.places import device_memory_bytes, placed
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Stage
from meshwise.request.pipeline_request import PipelineRequest


def smaller_request(request: PipelineRequest) -> PipelineRequest:
    """Return the same request with its share of the memory, of every kind of device alike.

    Args:
        request: What is asked.
    """
    share, asked = request.memory_share, request.memory_bytes
    if asked is not None:
        return replace(request, memory_bytes=_part(asked, share))
    groups = tuple(_smaller_devices(group, share) for group in request.cluster.groups)
    return replace(request, cluster=ClusterSpec(name=request.cluster.name, groups=groups))


def whole_plan(plan: Plan, request: PipelineRequest) -> Plan:
    """Return a plan for a `smaller_request` with the devices and the memory that there are.

    Args:
        plan: The plan.
        request: What was asked, whole.
    """
    cluster, asked = request.cluster, request.memory_bytes
    stages = tuple(_on_devices_of(stage, cluster) for stage in plan.stages)
    found = replace(
        plan, stages=stages, cluster=ClusterSpec(name=cluster.name, groups=cluster.groups)
    )
    return limited_plan(found, lambda stage: asked or device_memory_bytes(stage, cluster))


def limited_plan(plan: Plan, limit: Callable[[Stage], int]) -> Plan:
    """Return a plan with other limits of memory, whether it fits or not.

    What a compiler said of it was said of the limits that it had.

    Args:
        plan: The plan.
        limit: The bytes of a device that a stage may use.
    """
    stages = tuple(replace(stage, memory_bytes=limit(stage)) for stage in plan.stages)
    return plan if stages == plan.stages else replace(plan, stages=stages, verified="")


def _smaller_devices(group: HostGroup, share: float) -> HostGroup:
    device = group.host.device
    device = replace(device, memory_bytes=_part(device.memory_bytes, share))
    return replace(group, host=replace(group.host, device=device))


def _part(num_bytes: int, share: float) -> int:
    """Return so much of the memory, at least a byte: none would mean all that there is."""
    return max(int(num_bytes * share), 1)


def _on_devices_of(stage: Stage, cluster: ClusterSpec) -> Stage:
    """Return a stage on the devices that a cluster has in its place."""
    place = placed(stage, cluster)
    there = cluster.submesh(
        place.hosts.start, len(place.hosts), place.first_device, place.num_devices
    )
    return replace(stage, mesh=replace(stage.mesh, device=there.kind.device))
