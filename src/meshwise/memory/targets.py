"""The targets that there are; adding one is a folder and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.cluster.device_kind import device_kind
from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError
from meshwise.memory.cpu.target import CPU
from meshwise.memory.gpu.target import GPU
from meshwise.memory.target import Target
from meshwise.memory.tpu.target import TPU, TPU_V5P

MEMORY_MODELS: Mapping[str, Target] = MappingProxyType(
    {"cpu": CPU, "gpu": GPU, "tpu": TPU, "tpu-v5p": TPU_V5P}
)


def memory_model(name: str) -> Target:
    """Return the memory rules of a target.

    Args:
        name: Name of the target, as `cpu`.

    Raises:
        ClusterError: there is no such target.
    """
    if name not in MEMORY_MODELS:
        raise ClusterError(f"no memory model for {name!r}; there are {', '.join(MEMORY_MODELS)}")
    return MEMORY_MODELS[name]


def memory_model_of(device: DeviceSpec) -> Target:
    """Return the memory rules of the compiler of a device.

    A device that is not known has those of a CPU: they ask for more.

    Args:
        device: The device.
    """
    return memory_model(device_kind(device))
