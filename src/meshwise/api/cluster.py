"""The cluster as users have it: described, or as processes see it."""

from __future__ import annotations

from collections.abc import Mapping

from meshwise.api.distributed_cluster import distributed_cluster
from meshwise.api.local_cluster import local_cluster
from meshwise.api.ray_cluster import RayCluster, ray_cluster
from meshwise.cluster import spec


class Cluster(spec.ClusterSpec):
    """A cluster; see `meshwise.cluster.spec.ClusterSpec`."""

    @classmethod
    def local(cls) -> spec.ClusterSpec:
        """Return the devices that this process sees; see `local_cluster`.

        Raises:
            ClusterError: the accelerator is not in the catalog.
        """
        return local_cluster()

    @classmethod
    def distributed(cls) -> spec.ClusterSpec:
        """Return the devices of all processes of a job; see `distributed_cluster`.

        Raises:
            ClusterError: there is no job, or its processes differ in what must be equal.
        """
        return distributed_cluster()

    @classmethod
    def ray(
        cls,
        *,
        hosts: int,
        devices_per_host: int | None = None,
        resources_per_host: Mapping[str, float] | None = None,
        env_vars: Mapping[str, str] | None = None,
        patience_s: float = 60.0,
    ) -> RayCluster:
        """Start a process on each of some hosts of Ray, for a driver; see `ray_cluster`.

        Raises:
            LaunchError: Ray is not installed, or has no room for the hosts.
        """
        return ray_cluster(
            hosts=hosts,
            devices_per_host=devices_per_host,
            resources_per_host=resources_per_host,
            env_vars=env_vars,
            patience_s=patience_s,
        )
