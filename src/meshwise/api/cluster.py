"""The cluster as users have it: described, or as processes see it."""

from __future__ import annotations

from meshwise.api.distributed_cluster import distributed_cluster
from meshwise.api.local_cluster import local_cluster
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
