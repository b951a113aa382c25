"""The devices that this process sees, as a cluster."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax

from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.spec import Cluster
from meshwise.errors import ClusterError

# Accelerator name as JAX reports it (in parts) -> catalog host that has such devices.
_CATALOG_HOSTS = (
    ("H200", "h200"),
    ("H100", "dgx-h100"),
    ("A100", "dgx-a100"),
    ("V100", "p3.16xlarge"),
)


def local_cluster() -> Cluster:
    """Describe the devices of this process; GPUs by their data sheet.

    Raises:
        ClusterError: the accelerator is not in the catalog.
    """
    devices = jax.devices()
    if devices[0].platform == "cpu":
        return cpu_cluster(len(devices))
    kind = devices[0].device_kind
    for part, host_name in _CATALOG_HOSTS:
        if part in kind:
            host = Cluster.virtual(f"1x {host_name}").host
            host = dataclasses.replace(host, num_devices=len(devices))
            return Cluster(name=f"{len(devices)} x {kind}", num_hosts=1, host=host)
    raise ClusterError(
        f"no data sheet for device {kind!r}; describe the host in a TOML file and pass "
        "cluster=Cluster.from_file(...)"
    )


def check_cluster(cluster: Any) -> Cluster:
    """The cluster, if it is one.

    Raises:
        ClusterError: it is the text, the file or the number of devices that is meant.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, os.PathLike) or (isinstance(cluster, str) and cluster.endswith(".toml")):
        raise ClusterError(
            f"cluster is the path {os.fspath(cluster)!r}; pass "
            f"cluster=mw.Cluster.from_file({os.fspath(cluster)!r})"
        )
    if isinstance(cluster, str):
        raise ClusterError(
            f"cluster is the string {cluster!r}; pass cluster=mw.Cluster.virtual({cluster!r})"
        )
    what = f"the class {cluster.__name__}" if isinstance(cluster, type) else f"{cluster!r:.60}"
    raise ClusterError(
        f"cluster is {what}; pass a mw.Cluster, as mw.Cluster.virtual('8x p3.16xlarge'), or None "
        "for the devices of this process"
    )
