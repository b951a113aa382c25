"""A device and a logical mesh of devices, as far as costs need them. SI units throughout."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device.

    Attributes:
        name: The name, as in the catalog.
        memory_bytes: Usable memory of one device.
        memory_bytes_per_s: Reached memory bandwidth.
        flop_per_s: Reached rate of dense products, pairs (dtype name, FLOP/s).
        source: The origin of the numbers: a datasheet with an efficiency, or a measurement.
        dense_times: Measured times of dense products by dtype name: points (FLOP, seconds) in
            ascending order of both.  A dtype without points has its rate at any size.
        host_bytes_per_s: Reached bandwidth to or from the memory of its host, in one direction,
            while all devices of the host use theirs; 0 where it is not known.
        host_memory_bytes: Its share of the memory of its host; 0 where that is not known.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    flop_per_s: tuple[tuple[str, float], ...]
    source: str
    dense_times: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()
    host_bytes_per_s: float = 0.0
    host_memory_bytes: int = 0

    def rate(self, dtype: str) -> float:
        """Return FLOP/s for a dtype; an unknown dtype runs at the slowest known rate."""
        rates = dict(self.flop_per_s)
        return rates[dtype] if dtype in rates else min(rates.values())

    def dense_s(self, flop: float, dtype: str, count: int = 1) -> float:
        """Return the seconds of `count` equal dense products that take `flop` together.

        With measured points the time of one is linear between them, and in proportion to the FLOP
        below the first and above the last.
        """
        points = dict(self.dense_times).get(dtype) if self.dense_times else None
        if not points or not flop:
            return flop / self.rate(dtype)
        return count * _at(points, flop / count)


def _at(points: tuple[tuple[float, float], ...], flop: float) -> float:
    """Return the piecewise-linear time of a product."""
    right = bisect.bisect_left(points, (flop, 0.0))
    if right == 0 or right == len(points):
        end_flop, end_s = points[min(right, len(points) - 1)]
        return flop * end_s / end_flop
    (left_flop, left_s), (right_flop, right_s) = points[right - 1], points[right]
    return left_s + (right_s - left_s) * (flop - left_flop) / (right_flop - left_flop)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """One axis of a logical mesh: `size` devices that share one bandwidth.

    Attributes:
        name: The name.
        size: Number of its devices.
        latency_s: Seconds of latency of a link to the next device.
        link_bytes_per_s: Bandwidth of such a link in a ring.
        exchange_bytes_per_s: Its bandwidth in an all-to-all, if that is less, else 0.  In a ring
            one device of a host sends to another host, in an all-to-all all of them do.
    """

    name: str
    size: int
    latency_s: float
    link_bytes_per_s: float
    exchange_bytes_per_s: float = 0.0

    def bytes_per_s(self, *, is_exchange: bool) -> float:
        """Return the bandwidth of a link.

        Args:
            is_exchange: Whether in an all-to-all, else in a ring.
        """
        return (is_exchange and self.exchange_bytes_per_s) or self.link_bytes_per_s


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
    def axis_names(self) -> tuple[str, ...]:
        """Name of each axis, as `jax.sharding.Mesh` has them."""
        return self.names

    @property
    def shape(self) -> dict[str, int]:
        """Size of each axis by its name, as `jax.sharding.Mesh` has them."""
        return dict(zip(self.names, self.sizes, strict=True))

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return math.prod(self.sizes)
