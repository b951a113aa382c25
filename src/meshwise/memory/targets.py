"""The targets that there are; adding one is a folder and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError
from meshwise.memory.cpu.target import CPU
from meshwise.memory.gpu.target import GPU
from meshwise.memory.target import Target
from meshwise.memory.tpu.target import TPU, TPU_V5P

MEMORY_MODELS: Mapping[str, Target] = MappingProxyType(
    {"cpu": CPU, "gpu": GPU, "tpu": TPU, "tpu-v5p": TPU_V5P}
)

# Parts of the names of devices, in the catalog and as drivers report them, by target; JAX calls a
# v5p `TPU v5`.  A v4 and a v6e have the rules of a v5e: neither was compared.
_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu": ("NVIDIA", "V100", "A100", "H100", "H200", "B200", "B300"),
        "tpu-v5p": ("TPU v5p",),
        "tpu": ("TPU",),
    }
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
    for name, parts in _PARTS.items():
        if any(part in device.name or part == f"{device.name}p" for part in parts):
            return memory_model(name)
    return CPU
