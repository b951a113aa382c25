"""The targets that there are; adding one is a folder and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError
from meshwise.memory.cpu.target import CpuTarget
from meshwise.memory.target import Target

TARGETS: Mapping[str, Target] = MappingProxyType({"cpu": CpuTarget()})


def memory_model(name: str) -> Target:
    """Return the memory rules of a target.

    Args:
        name: Name of the target, as `cpu`.

    Raises:
        ClusterError: there is no such target.
    """
    if name not in TARGETS:
        raise ClusterError(f"no memory model for {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]


def target_of(device: DeviceSpec) -> Target:
    """Return the memory rules of the compiler of a device; all devices have those of a CPU yet."""
    del device
    return memory_model("cpu")
