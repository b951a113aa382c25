"""Looks at JAX in a process of its own: `python -m meshwise.runtime.probe [--virtual N]`.

Prints one line of JSON, for `meshwise doctor`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import jax
import jax.numpy as jnp

from meshwise.runtime.device_memory import device_memory_bytes


def probe(num_virtual: int | None) -> dict[str, object]:
    """Return what JAX sees, after a small program ran on all devices.

    Args:
        num_virtual: Virtual CPU devices; None for the devices that JAX chooses by itself.

    Raises:
        RuntimeError: the program gave a wrong result.
    """
    if num_virtual is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", num_virtual)
    devices = jax.devices()
    count = len(devices)
    total = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(jnp.arange(1.0, count + 1))
    if float(total[0]) != count * (count + 1) / 2:
        raise RuntimeError(f"the sum of 1 to {count} over the devices is {float(total[0])}")
    return {
        "platform": devices[0].platform,
        "kinds": dict(Counter(device.device_kind for device in devices)),
        "memory_bytes": device_memory_bytes(devices),
    }


if __name__ == "__main__":
    virtual = int(sys.argv[2]) if sys.argv[1:2] == ["--virtual"] else None
    print(json.dumps(probe(virtual)))  # noqa: T201
