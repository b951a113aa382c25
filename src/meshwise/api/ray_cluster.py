"""A driver without devices, and the hosts that Ray gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from meshwise.api.distributed_cluster import distributed_cluster
from meshwise.cluster.spec import ClusterSpec
from meshwise.hosts.ray.host_request import HostRequest
from meshwise.hosts.ray.ray_hosts import RayHosts


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster(ClusterSpec):
    """Hosts that Ray gives: a step for them runs there, and the driver gets handles.

    As a context manager it ends the hosts with the block.

    Attributes:
        hosts: The processes.
    """

    hosts: RayHosts = field(compare=False, repr=False)

    @property
    def described(self) -> ClusterSpec:
        """The same without the processes: what is planned for."""
        return ClusterSpec(name=self.name, groups=self.groups)

    def run(self, fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function in the process of every host, as to save a state.

        Args:
            fun: The function; it and the arguments are sent by cloudpickle.
            *args: Its arguments; it gets arrays in place of handles.
            **kwargs: Those by keyword, likewise.

        Returns:
            What it returns in process 0, with handles in place of arrays.

        Raises:
            ClusterError: a host has ended, or what comes back cannot be sent.
            Exception: what the function raised.  Where it did not on all hosts, they are ended.
        """
        return self.hosts.run(fun, args, kwargs)

    def shutdown(self) -> None:
        """End the processes, with all that lives there, and free what Ray reserved."""
        self.hosts.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


def ray_cluster(
    *,
    hosts: int,
    devices_per_host: int | None = None,
    resources_per_host: Mapping[str, float] | None = None,
    env_vars: Mapping[str, str] | None = None,
    patience_s: float = 60.0,
) -> RayCluster:
    """Start a process on each of some hosts of Ray, and join them to a job.

    The driver connects to Ray (`ray.init()`) unless it is connected.  Hosts with accelerators are
    different nodes of Ray, those with virtual CPU devices where there are enough.  They end with
    `shutdown()`, with a `with` block, with Ctrl-C in a call, and with the driver.

    Args:
        hosts: How many.
        devices_per_host: Virtual CPU devices of each; None where hosts have accelerators.
        resources_per_host: What Ray reserves for each, as `{"GPU": 8}`; one CPU if nothing is said.
        env_vars: Environment variables of each process.
        patience_s: How long Ray may take to find room.

    Raises:
        LaunchError: Ray is not installed or has no room for the hosts, or they have no devices.
        ClusterError: the hosts differ in what must be equal.
    """
    request = HostRequest(
        num_hosts=hosts,
        devices_per_host=devices_per_host,
        resources_per_host=resources_per_host,
        env_vars=env_vars or {},
    )
    started = RayHosts(request, patience_s=patience_s)
    try:
        seen = started.run(distributed_cluster, (), {})
    except BaseException:
        started.shutdown()
        raise
    return RayCluster(name=seen.name, groups=seen.groups, hosts=started)
