"""The devices that this process sees, as a cluster."""

from __future__ import annotations

import dataclasses

import jax

from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.spec import Cluster
from meshwise.errors import ClusterError

# Accelerator name as JAX reports it (in parts) -> catalog host that has such devices.
_CATALOG_HOSTS = (("H200", "h200"), ("H100", "dgx-h100"), ("A100", "dgx-a100"),
                  ("V100", "p3.16xlarge"))


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
