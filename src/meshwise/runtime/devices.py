"""The devices that a plan runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import jax

from meshwise.errors import ClusterError
from meshwise.runtime.job.job import Job


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
            f"the plan needs {count} devices, {who} {len(devices)} "
            f"({devices[0].platform}); plan for fewer, or for tests set jax_num_cpu_devices"
        )
    return devices
