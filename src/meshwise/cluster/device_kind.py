"""The kind of a device, and what its compiler does to collectives."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from meshwise.cluster.mesh import DeviceSpec

# Parts of the names of devices, in the catalog and as drivers report them, by kind; JAX calls a
# v5p `TPU v5`.  A v4 and a v6e are as a v5e: neither was compared.
_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu": ("NVIDIA", "V100", "A100", "H100", "H200", "B200", "B300"),
        "tpu-v5p": ("TPU v5p",),
        "tpu": ("TPU",),
    }
)
_MIB = 2**20
# Bytes that a compiler puts into one collective.  XLA:GPU: default of its options
# `xla_gpu_all_reduce_combine_threshold_bytes` and of those for all-gather and reduce-scatter.
# XLA:TPU merges at least as much (docs/measurements/overlap.md: 64 MiB).  XLA:CPU could, but its
# programs forbid it, so that each collective can be counted.
_BUCKET_BYTES: Mapping[str, int] = MappingProxyType(
    {"gpu": 30 * _MIB, "tpu-v5p": 30 * _MIB, "tpu": 30 * _MIB, "cpu": 0}
)


def device_kind(device: DeviceSpec) -> str:
    """Return `cpu`, `gpu`, `tpu` or `tpu-v5p`; a device that is not known counts as a CPU.

    Args:
        device: The device.
    """
    for kind, parts in _PARTS.items():
        if any(part in device.name or part == f"{device.name}p" for part in parts):
            return kind
    return "cpu"


class Bucket(NamedTuple):
    """Collectives that a compiler merges into as few as it can.

    Attributes:
        num_bytes: Bytes of one that is full.
        sharers: Tensors whose collectives are merged.
    """

    num_bytes: int
    sharers: int


def bucket_of(device: DeviceSpec, sharers: int) -> Bucket | None:
    """Return the bucket of a tensor; None where each collective runs alone.

    Args:
        device: The device.
        sharers: Of the tensor.
    """
    size = _BUCKET_BYTES[device_kind(device)]
    return Bucket(size, sharers) if size and sharers else None
