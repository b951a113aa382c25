"""The devices that this process sees, as a cluster."""

from __future__ import annotations

import dataclasses
import os

import jax

from meshwise.cluster import spec
from meshwise.cluster.catalog import GPUS_OF_A_SWITCH
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.host import HostGroup, HostSpec
from meshwise.errors import ClusterError
from meshwise.runtime.device_memory import device_memory_bytes, host_memory_bytes
from meshwise.runtime.job.job import current_job

# Accelerator name as JAX reports it (in parts) -> catalog host that has such devices.
_CATALOG_HOSTS = (
    ("H200", "h200"),
    ("H100", "dgx-h100"),
    ("A100", "dgx-a100"),
    ("V100", "p3.16xlarge"),
)


ONE_CPU = (
    "it is planned for one CPU device, which is all that JAX has here; for 8 virtual ones call "
    'jax.config.update("jax_num_cpu_devices", 8) before JAX is first used, and to plan for other '
    'hardware pass cluster=mw.Cluster.virtual("1x dgx-h100")'
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneProcess(spec.ClusterSpec):
    """The devices of one process of a job, which runs steps on them by itself."""


def local_cluster() -> spec.ClusterSpec:
    """Describe the devices of this process: GPUs by their data sheet, memory as JAX may use it.

    Raises:
        ClusterError: the accelerator is not in the catalog.
    """
    devices, in_job = jax.local_devices(), current_job() is not None
    if devices[0].platform == "cpu":
        found = cpu_cluster(len(devices), host_memory_bytes=host_memory_bytes())
    else:
        kind, limit = devices[0].device_kind, device_memory_bytes(devices)
        # Each process of a job may see one GPU of a machine that has many.
        host = accelerator_host(kind, len(devices), limit, has_neighbours=in_job)
        group = HostGroup(count=1, host=host)
        name = f"{len(devices)} x {devices[0].device_kind}"
        found = spec.ClusterSpec(name=name, groups=(group,))
    return OneProcess(name=found.name, groups=found.groups) if in_job else found


def is_one_cpu(cluster: spec.ClusterSpec | None) -> bool:
    """Return whether a cluster is one CPU device."""
    return cluster is not None and cluster.name == cpu_cluster(1).name


def accelerator_host(
    kind: str, num_devices: int, memory_bytes: int | None, *, has_neighbours: bool = False
) -> HostSpec:
    """Return a host of the catalog with some devices of a kind.

    Args:
        kind: The kind of the devices, as JAX calls it.
        num_devices: How many it has; each keeps its share of the NICs.
        memory_bytes: What JAX may use of each; None: all of it.
        has_neighbours: Whether the machine may have other devices, which other processes use.

    Raises:
        ClusterError: the accelerator is not in the catalog.
    """
    for part, host_name in _CATALOG_HOSTS:
        if part in kind:
            host = spec.ClusterSpec.virtual(f"1x {host_name}").host
            limit = memory_bytes or host.device.memory_bytes
            # A single GPU shares its way to the memory of the host with no other.
            sharing = GPUS_OF_A_SWITCH if num_devices == 1 and not has_neighbours else 1
            device = dataclasses.replace(
                host.device,
                memory_bytes=limit,
                host_bytes_per_s=sharing * host.device.host_bytes_per_s,
            )
            nics = max(num_devices * host.num_nics // host.num_devices, 1)
            return dataclasses.replace(host, num_devices=num_devices, device=device, num_nics=nics)
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
        "for the devices of this process, or of all processes of its job"
    )
