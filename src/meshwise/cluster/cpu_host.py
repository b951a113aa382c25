"""A host of virtual CPU devices: many devices that share the cores and the memory of one host.

All constants were measured on 2026-11-20 on 2 cores of an AMD EPYC with JAX 0.10.2 (products of
1024 x 1024 under `jax.jit`, best of 8; collectives of 16 MiB over 8 virtual devices).  They are
rates of the host; a device has its share, so that replicated work costs what it costs.
"""

from __future__ import annotations

from meshwise.cluster.host import HostSpec, Link
from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError
from meshwise.units import GIB, GIGA, MICRO

# float64 as NumPy reaches it; bfloat16 products run in float32 with two converts.
HOST_FLOP_PER_S = (
    ("bfloat16", 180 * GIGA),
    ("float32", 200 * GIGA),
    ("float64", 98 * GIGA),
)
# `x + 1` on 128 MiB under jit, read and written bytes: 6.3 GB/s with the page faults of a fresh
# result; a copy into touched memory reaches 26 GB/s.
HOST_MEMORY_BYTES_PER_S = 6.3 * GIGA
# All-reduce of 16 MiB over 8 devices took 18 ms, all-gather 11 ms: 1.6 and 1.3 GB/s a device.
HOST_LINK_BYTES_PER_S = 12 * GIGA
# Collectives of 4 KiB over 8 devices took 0.33 to 0.5 ms: 14 and 7 hops.
HOP_LATENCY_S = 25 * MICRO
# Assumption: a small workstation; pass the real size where it matters.
HOST_MEMORY_BYTES = 16 * GIB


# Between processes of one machine, by sockets: 0.5 to 1 GB/s, and 0.2 ms for a small message there
# and back, on 2 cores with JAX 0.10.2 (2026-08).  A real network is measured by `calibrate`.
LOOPBACK_BYTES_PER_S = 0.7 * GIGA
LOOPBACK_LATENCY_S = 100 * MICRO


def cpu_host(
    num_devices: int, *, host_memory_bytes: int = HOST_MEMORY_BYTES, num_sharing: int | None = None
) -> HostSpec:
    """Return a host of virtual devices, whose cores run them.

    Args:
        num_devices: Virtual devices.
        host_memory_bytes: Memory of the machine.
        num_sharing: How many devices share the cores and the memory of the machine, where other
            processes on it have devices too; None: those of the host.

    Raises:
        ClusterError: There is not at least one device.
    """
    if num_devices < 1:
        raise ClusterError(f"a host needs at least one virtual CPU device, got {num_devices}")
    sharing = num_devices if num_sharing is None else num_sharing
    device = DeviceSpec(
        name="virtual CPU",
        memory_bytes=host_memory_bytes // sharing,
        memory_bytes_per_s=HOST_MEMORY_BYTES_PER_S / sharing,
        flop_per_s=tuple((dtype, rate / sharing) for dtype, rate in HOST_FLOP_PER_S),
        source=f"host rate / {sharing} devices; defaults measured 2026-11-20 (cluster/cpu_host.py)",
        # The memory of the host is that of the devices.
        host_bytes_per_s=HOST_MEMORY_BYTES_PER_S / sharing,
        host_memory_bytes=host_memory_bytes // sharing,
    )
    link = Link(latency_s=HOP_LATENCY_S, bytes_per_s=HOST_LINK_BYTES_PER_S / sharing)
    is_alone = sharing == num_devices
    loopback = Link(latency_s=LOOPBACK_LATENCY_S, bytes_per_s=LOOPBACK_BYTES_PER_S)
    return HostSpec(
        name="cpu",
        num_devices=num_devices,
        device=device,
        link=link,
        nic=link if is_alone else loopback,
        source=device.source,
    )
