"""What every kind of device answers for which programs can be compiled without having one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSlice:
    """How a compiler is asked for a number of devices.

    Attributes:
        name: How it names them, as "v5e:2x4".
        options: What else it asks for.
    """

    name: str
    options: Mapping[str, Any]


class CompileTarget(Protocol):
    """A kind of device with its compiler."""

    @property
    def name(self) -> str:
        """Name in the catalog, as `h100`."""
        ...

    @property
    def platform(self) -> str:
        """How JAX names the platform, as `cuda`."""
        ...

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the device, that in `cluster.catalog` first."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory of one device."""
        ...

    @property
    def reserves(self) -> Mapping[str, int]:
        """What the runtime keeps of it: the names of those that hold it, and bytes."""
        ...

    @property
    def cycles_per_s(self) -> float | None:
        """Clock rate in which its compiler counts costs; None where it says seconds."""
        ...

    def slice(self, num_devices: int) -> TargetSlice:
        """Return how the compiler is asked for so many devices.

        Args:
            num_devices: Devices of the mesh.

        Raises:
            ClusterError: there are no slices with so many devices.
        """
        ...
