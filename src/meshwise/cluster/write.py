"""The description of a cluster as a table, which `cluster.read` reads back."""

from __future__ import annotations

from meshwise.cluster.read_host import host_table
from meshwise.cluster.spec import Cluster


def cluster_table(cluster: Cluster) -> dict[str, object]:
    """Name and groups of hosts, each host with all its numbers: nothing refers to the catalog."""
    return {
        "name": cluster.name,
        "hosts": [
            {"count": group.count, "host": host_table(group.host)} for group in cluster.groups
        ],
    }
