"""TPUs for which programs can be compiled without having one.

XLA:TPU compiles for a slice, which has a name.  A mesh of two devices takes the first ones of a
host; for other parts of slices libtpu does not compile collectives.  Sources: Google Cloud's pages
on TPU v5e, v5p and v6e for shapes of slices and memory.

TPU v4 is left out: libtpu describes its two cores as two devices, where JAX on a v4 has one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwise.errors import ClusterError
from meshwise.targets.compile_target import TargetSlice
from meshwise.units import GIB, counted

_HALF_A_HOST = 2

_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBIC = (
    *((1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8)),
    *((8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuTarget:
    """A kind of TPU, and how XLA:TPU is asked for a number of them.

    Attributes:
        name: Name in the catalog, and how the compiler names the kind, as `v5e`.
        device: Name of the device in `cluster.catalog`.
        memory_bytes: Memory of one chip.
        kept_bytes: What the compiler gives to no program.
        cycles_per_s: Clock rate of its cores.
        shapes: Chips of its slices along each dim of the torus, smallest first.
    """

    name: str
    device: str
    memory_bytes: int
    kept_bytes: int
    cycles_per_s: float
    shapes: tuple[tuple[int, ...], ...]

    @property
    def platform(self) -> str:
        """How JAX names the platform."""
        return "tpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the device, that in `cluster.catalog` first."""
        return (self.device,)

    @property
    def reserves(self) -> Mapping[str, int]:
        """What the runtime keeps of the memory: the names of those that hold it, and bytes."""
        return {"TPU runtime": self.kept_bytes}

    def slice(self, num_devices: int) -> TargetSlice:
        """Return how the compiler is asked for so many devices.

        Args:
            num_devices: Devices of the mesh.

        Raises:
            ClusterError: no slice has so many devices.
        """
        shapes = {math.prod(shape): shape for shape in self.shapes}
        shapes[_HALF_A_HOST] = shapes[2 * _HALF_A_HOST]
        if num_devices not in shapes:
            raise ClusterError(
                f"no slice of {self.name} has {counted(num_devices, 'device')}; there are slices "
                f"of {', '.join(map(str, sorted(shapes)))}"
            )
        # Hosts have 2 x 2 chips; a single chip has to be said.
        options = {} if num_devices > 1 else {"chips_per_host_bounds": [1, 1, 1]}
        name = f"{self.name}:{'x'.join(map(str, shapes[num_devices]))}"
        return TargetSlice(name=name, options=options)


# Clocks: the published peak in bfloat16 over 2 x 128 x 128 FLOP a cycle of each matrix unit (MXU):
# 4 on v5e, 8 on v5p (two cores), and 4 of 256 x 256 on v6e.  Google's pages say 2 or 4 for v6e:
# with 4 the compiler's passes over memory reach 0.83 of the bandwidth, on v5e 0.81.
# Memory: libtpu 0.0.42.1 refuses a larger program with "exceeds available HBM (15.75G)", (95.74G)
# and (31.25G).
TPUS = (
    TpuTarget(
        name="v5e",
        device="TPU v5e",
        memory_bytes=16 * GIB,
        kept_bytes=GIB // 4,
        cycles_per_s=1.5e9,
        shapes=_FLAT,
    ),
    TpuTarget(
        name="v5p",
        device="TPU v5p",
        memory_bytes=96 * GIB,
        kept_bytes=int(0.26 * GIB),
        cycles_per_s=1.75e9,
        shapes=_CUBIC,
    ),
    TpuTarget(
        name="v6e",
        device="TPU v6e",
        memory_bytes=32 * GIB,
        kept_bytes=3 * GIB // 4,
        cycles_per_s=1.75e9,
        shapes=_FLAT,
    ),
)
