"""The devices that a plan runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import jax
from jax.sharding import Mesh

from meshwise.errors import ClusterError
from meshwise.runtime.job.job import Job
from meshwise.units import counted


class Device(Protocol):
    """What is asked of a device of JAX."""

    @property
    def platform(self) -> str:
        """The platform, as `cpu`."""
        ...

    @property
    def device_kind(self) -> str:
        """The kind, as `NVIDIA H100`."""
        ...

    @property
    def process_index(self) -> int:
        """The number of the process that has it."""
        ...

    def memory_stats(self) -> dict[str, int] | None:
        """Return what the allocator says, in bytes; None if it says nothing."""
        ...


def devices_for(count: int, job: Job | None = None) -> Sequence[Device]:
    """Return all devices of which a plan needs some, in the order in which a cluster numbers them.

    Args:
        count: Devices that the plan needs.
        job: The processes whose devices they are; None: this process alone.

    Raises:
        ClusterError: There are fewer.
    """
    devices = cast(Sequence[Device], jax.local_devices() if job is None else jax.devices())
    if count > len(devices):
        who = "this process sees" if job is None else f"the {job.num_processes} processes have"
        raise ClusterError(
            f"the plan needs {counted(count, 'device')}, {who} {len(devices)} "
            f"({devices[0].platform}); plan for fewer, or for tests set jax_num_cpu_devices"
        )
    return devices


def has_devices_here(mesh: Mesh) -> bool:
    """Return whether devices of a mesh are of this process.

    Args:
        mesh: The mesh.
    """
    process = jax.process_index()
    return any(device.process_index == process for device in mesh.devices.flat)


def array_of(spec: jax.ShapeDtypeStruct, shards: Sequence[jax.Array]) -> jax.Array:
    """Return the array of which this process has some shards, or none.

    Args:
        spec: Its global shape, dtype and sharding.
        shards: What lies on devices of this process, in the order of the sharding's devices.
    """
    if shards:
        return jax.make_array_from_single_device_arrays(spec.shape, spec.sharding, list(shards))
    # JAX narrows a dtype that it is told; whether x64 is on is known in the user's thread only.
    with jax.enable_x64(True):
        return jax.make_array_from_single_device_arrays(
            spec.shape, spec.sharding, [], dtype=spec.dtype
        )
