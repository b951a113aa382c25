"""The devices that a plan runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import jax

from meshwise.errors import ClusterError


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


def devices_for(count: int) -> Sequence[Device]:
    """Return all devices of this process, of which a plan needs some.

    Args:
        count: Devices that the plan needs.

    Raises:
        ClusterError: There are fewer.
    """
    devices = cast(Sequence[Device], jax.devices())
    if count > len(devices):
        raise ClusterError(
            f"the plan needs {count} devices, this process sees {len(devices)} "
            f"({devices[0].platform}); plan for fewer, or for tests set jax_num_cpu_devices"
        )
    return devices
