"""The devices of all processes of a job, as a cluster."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby

import jax

from meshwise.api.local_cluster import accelerator_host, local_cluster
from meshwise.cluster.cpu_host import cpu_host
from meshwise.cluster.host import HostGroup, HostSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError
from meshwise.jax_compat.jobs import job_state
from meshwise.runtime.device_memory import device_memory_bytes, host_memory_bytes
from meshwise.runtime.job.agreement import check_agreement
from meshwise.runtime.job.job import current_job
from meshwise.system.cpu_threads import NUM_THREADS, own_threads, threads_needed
from meshwise.units import counted

# The processes of a job begin together: one that is not here by then does not come.
_PATIENCE_S = 30.0
_EQUAL_PACKAGES = ("jax", "jaxlib", "meshwise")


def seen_cluster() -> ClusterSpec:
    """Return the devices of all processes of a job; without a job those of this process.

    Raises:
        ClusterError: as `distributed_cluster` and `local_cluster` say.
    """
    return local_cluster() if current_job() is None else distributed_cluster()


def distributed_cluster() -> ClusterSpec:
    """Describe the devices of all processes of a `jax.distributed` job.

    Accelerators of one machine are one host, whether one process has them or several.  Virtual CPU
    devices of a process are a host of their own, so that several hosts can be tried on one machine,
    whose cores and memory they share.

    Raises:
        ClusterError: `jax.distributed` is not initialised; a process does not come within 30 s; the
            processes differ in versions of packages; accelerators are not in the catalog.
    """
    if job_state() is None:
        raise ClusterError(
            "jax.distributed is not initialised; call jax.distributed.initialize() before "
            "Cluster.distributed(), in every process of the job, or take Cluster.local()"
        )
    job = current_job()
    if job is None:
        return local_cluster()
    versions = {name: version(name) for name in _EQUAL_PACKAGES}
    check_agreement(job, "the versions of packages", versions, patience_s=_PATIENCE_S)
    texts = job.exchange("its devices", json.dumps(_own_devices()), patience_s=_PATIENCE_S)
    return cluster_of([ProcessDevices(**json.loads(text)) for text in texts])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDevices:
    """What a process says of its devices.

    Attributes:
        machine: The name of the machine.
        platform: The platform of the devices, as "cpu".
        kind: Their kind, as JAX calls it.
        count: How many there are.
        memory_bytes: What JAX may use of each; None if it does not say.
        machine_bytes: The memory of the machine.
        threads: Threads with which XLA:CPU runs programs.
    """

    machine: str
    platform: str
    kind: str
    count: int
    memory_bytes: int | None
    machine_bytes: int
    threads: int


def cluster_of(processes: Sequence[ProcessDevices]) -> ClusterSpec:
    """Return the cluster of all processes of a job.

    Args:
        processes: Their devices, in the order of their numbers.

    Raises:
        ClusterError: platforms differ, processes of one machine do not follow each other, or
            accelerators are not in the catalog.
    """
    platforms = dict.fromkeys(each.platform for each in processes)
    if len(platforms) > 1:
        raise ClusterError(
            f"processes have devices of different platforms ({', '.join(platforms)}); set "
            "JAX_PLATFORMS to one of them in every process"
        )
    if "cpu" in platforms:
        _check_threads(processes)
        sharing = Counter[str]()
        for each in processes:
            sharing[each.machine] += each.count
        hosts = [
            cpu_host(
                each.count,
                host_memory_bytes=each.machine_bytes,
                num_sharing=sharing[each.machine],
            )
            for each in processes
        ]
    else:
        hosts = list(_machines(processes))
    groups = [list(some) for _, some in groupby(hosts)]
    name = " + ".join(
        f"{counted(len(some), 'host')} of "
        f"{counted(some[0].num_devices, f'{some[0].device.name} device')}"
        for some in groups
    )
    return ClusterSpec(
        name=name, groups=tuple(HostGroup(count=len(some), host=some[0]) for some in groups)
    )


def _check_threads(processes: Sequence[ProcessDevices]) -> None:
    """Refuse processes whose collectives may wait for one another for ever."""
    for number, each in enumerate(processes):
        needed = threads_needed(each.count)
        if each.threads < needed:
            raise ClusterError(
                f"XLA:CPU has {counted(each.threads, 'thread')} for "
                f"{counted(each.count, 'device')} of process {number}, and needs twice as many as "
                "devices, or collectives wait for ever; set "
                f"{NUM_THREADS}={needed} in the environment before Python starts, as "
                "`meshwise launch` does"
            )


def _machines(processes: Sequence[ProcessDevices]) -> Iterator[HostSpec]:
    """Yield the machines of accelerators; several processes may have those of one."""
    seen: set[str] = set()
    for machine, those in groupby(processes, key=lambda each: each.machine):
        if machine in seen:
            raise ClusterError(
                f"processes of machine {machine!r} have numbers with those of other machines "
                "between them; start them so that those of one machine follow each other"
            )
        seen.add(machine)
        some = list(those)
        limits = [each.memory_bytes for each in some if each.memory_bytes is not None]
        count = sum(each.count for each in some)
        yield accelerator_host(some[0].kind, count, min(limits, default=None))


def _own_devices() -> dict[str, str | int | None]:
    """Return the fields of `ProcessDevices` for this process."""
    devices = jax.local_devices()
    own = ProcessDevices(
        machine=socket.gethostname(),
        platform=devices[0].platform,
        kind=devices[0].device_kind,
        count=len(devices),
        memory_bytes=device_memory_bytes(devices),
        machine_bytes=host_memory_bytes(),
        threads=own_threads(),
    )
    return asdict(own)
