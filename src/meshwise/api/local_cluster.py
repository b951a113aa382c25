"""The devices that this process sees, as a cluster."""

from __future__ import annotations

import dataclasses
import os

import jax

from meshwise.cluster import spec
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.host import HostGroup
from meshwise.errors import ClusterError
from meshwise.runtime.device_memory import device_memory_bytes, host_memory_bytes

# Accelerator name as JAX reports it (in parts) -> catalog host that has such devices.
_CATALOG_HOSTS = (
    ("H200", "h200"),
    ("H100", "dgx-h100"),
    ("A100", "dgx-a100"),
    ("V100", "p3.16xlarge"),
)


class Cluster(spec.ClusterSpec):
    """A cluster; see `meshwise.cluster.spec.ClusterSpec`."""

    @classmethod
    def local(cls) -> spec.ClusterSpec:
        """Return the devices that this process sees; see `local_cluster`.

        Raises:
            ClusterError: the accelerator is not in the catalog.
        """
        return local_cluster()


def local_cluster() -> spec.ClusterSpec:
    """Describe the devices of this process: GPUs by their data sheet, memory as JAX may use it.

    Raises:
        ClusterError: the accelerator is not in the catalog.
    """
    devices = jax.devices()
    if devices[0].platform == "cpu":
        return cpu_cluster(len(devices), host_memory_bytes=host_memory_bytes())
    kind = devices[0].device_kind
    for part, host_name in _CATALOG_HOSTS:
        if part in kind:
            host = Cluster.virtual(f"1x {host_name}").host
            limit = device_memory_bytes(devices) or host.device.memory_bytes
            device = dataclasses.replace(host.device, memory_bytes=limit)
            # Each device keeps its share of the NICs.
            nics = max(len(devices) * host.num_nics // host.num_devices, 1)
            host = dataclasses.replace(host, num_devices=len(devices), device=device, num_nics=nics)
            group = HostGroup(count=1, host=host)
            return spec.ClusterSpec(name=f"{len(devices)} x {kind}", groups=(group,))
    raise ClusterError(
        f"no data sheet for device {kind!r}; describe the host in a TOML file and pass "
        "cluster=Cluster.from_file(...)"
    )


def check_cluster(cluster: object) -> spec.ClusterSpec:
    """Return the cluster, if it is one.

    Raises:
        ClusterError: it is the text, the file or the number of devices that is meant.
    """
    if isinstance(cluster, spec.ClusterSpec):
        return cluster
    path = os.fspath(cluster) if isinstance(cluster, (str, os.PathLike)) else ""
    if isinstance(cluster, os.PathLike) or path.endswith((".toml", ".json")):
        reader = "from_profile" if path.endswith(".json") else "from_file"
        raise ClusterError(
            f"cluster is the path {path!r}; pass cluster=mw.Cluster.{reader}({path!r})"
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
