"""The devices that a plan runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from meshwise.errors import ClusterError


def devices_for(count: int) -> Sequence[Any]:
    """All devices of this process, of which a plan needs so many.

    Raises:
        ClusterError: there are fewer.
    """
    devices = jax.devices()
    if count > len(devices):
        raise ClusterError(
            f"the plan needs {count} devices, this process sees {len(devices)} "
            f"({devices[0].platform}); plan for fewer, or for tests set jax_num_cpu_devices"
        )
    return devices
