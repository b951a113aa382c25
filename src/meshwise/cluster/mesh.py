"""A device and a logical mesh of devices, as far as costs need them. SI units throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device.

    Attributes:
        name: As in the catalog.
        memory_bytes: Usable memory of one device.
        memory_bytes_per_s: Reached memory bandwidth.
        flop_per_s: Reached rate of dense products, pairs (dtype name, FLOP/s).
        source: Where the numbers come from: datasheet with efficiency, or measured.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    flop_per_s: tuple[tuple[str, float], ...]
    source: str

    def rate(self, dtype: str) -> float:
        """FLOP/s for a dtype; an unknown dtype runs at the slowest known rate."""
        rates = dict(self.flop_per_s)
        return rates[dtype] if dtype in rates else min(rates.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """One axis of a logical mesh: `size` devices that share one bandwidth."""

    name: str
    size: int
    latency_s: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMesh:
    """A logical, n-dimensional array of equal devices.  Axis order is major to minor."""

    axes: tuple[MeshAxis, ...]
    device: DeviceSpec

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each axis."""
        return tuple(axis.size for axis in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each axis."""
        return tuple(axis.name for axis in self.axes)

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return math.prod(self.sizes)
