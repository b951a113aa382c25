"""`calibrate`: everything that the cost model needs to know of the devices of this process."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import jax

from meshwise.calibrate.clock import Repetition, seconds_a_turn
from meshwise.calibrate.fit import dense_rates, dense_times, link_of, memory_rate
from meshwise.calibrate.programs import collective_loop, matmul_loop, memory_passes
from meshwise.cluster.collectives import COLLECTIVES
from meshwise.cluster.description.profile import CollectivePoint, MatmulPoint, MemoryPoint, Profile
from meshwise.cluster.host import HostSpec, Link
from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError
from meshwise.runtime.device_memory import device_memory_bytes
from meshwise.runtime.devices import Device
from meshwise.units import MICRO, bytes_text, counted, flop_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What to measure.

    Attributes:
        matmul: Rows of square matrices by dtype.
        memory: Bytes that one device reads and writes.
        collectives: Bytes of tensors as a group sees them whole.
        effort: The care with which it is measured.
        times_a_turn: Products or collectives in one turn of a loop.  A GPU asks its host after
            each turn whether another one follows, for about 15 us on an H200; of these an eighth
            is left in each product.
    """

    matmul: tuple[tuple[str, tuple[int, ...]], ...]
    memory: tuple[int, ...]
    collectives: tuple[int, ...]
    effort: Repetition
    times_a_turn: int = 1

    @property
    def num_matmuls(self) -> int:
        """Products in all."""
        return sum(len(sizes) for _, sizes in self.matmul)


# A core multiplies small matrices; an accelerator needs large ones to reach its rate.
CPU_SIZES = Sizes(
    matmul=(
        ("float32", (64, 128, 256, 512, 1024)),
        ("bfloat16", (64, 128, 256, 512, 1024)),
        ("float16", (128, 512)),
        ("float64", (128, 512, 1024)),
    ),
    # Eight devices of the largest read and write 64 MiB together, more than most caches hold.
    memory=(2**18, 2**21, 2**23),
    collectives=(2**12, 2**16, 2**20, 2**24),
    effort=Repetition(repeats=7, run_s=0.03),
)
ACCELERATOR_SIZES = Sizes(
    matmul=(
        ("float32", (256, 512, 1024, 2048, 4096, 8192)),
        ("bfloat16", (256, 512, 1024, 2048, 4096, 8192)),
        ("float16", (256, 512, 1024, 2048, 4096, 8192)),
    ),
    memory=(2**22, 2**26, 2**30),
    collectives=(2**12, 2**16, 2**20, 2**24, 2**28),
    # More products of the last result would grow out of float16 by rounding.
    effort=Repetition(repeats=9, run_s=0.05, max_turns=256),
    times_a_turn=8,
)
QUICK_SIZES = Sizes(
    matmul=(("float32", (64, 128)), ("bfloat16", (128,))),
    memory=(2**20,),
    collectives=(2**12, 2**18),
    effort=Repetition(repeats=3, run_s=0.005),
)

# Done, in all, and what was found, as text.
Report = Callable[[int, int, str], None]


def calibrate(
    devices: Sequence[Device],
    *,
    command: str,
    sizes: Sizes | None = None,
    memory_bytes: int | None = None,
    report: Report | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Measure devices of one kind that lie in one host.

    Args:
        devices: The devices; all work at the same time.
        command: The command that was called, for the profile.
        sizes: What to measure; by default what suits the platform.
        memory_bytes: Memory of one device, where JAX does not say it.
        report: Is told of every measurement; None for nobody.
        now: The clock; in a job one that its processes agree on.

    Returns:
        What was measured, and the host that the cost model reads.

    Raises:
        ClusterError: There is no device, or nobody says how much memory one has.
    """
    if not devices:
        raise ClusterError("no devices to measure; pass those of jax.devices()")
    first = devices[0]
    memory_bytes = memory_bytes or device_memory_bytes(devices)
    if memory_bytes is None:
        raise ClusterError(
            f"JAX does not say how much memory {first.device_kind!r} has; pass it, as "
            "`meshwise calibrate --memory 16GB`"
        )
    sizes = sizes or (CPU_SIZES if first.platform == "cpu" else ACCELERATOR_SIZES)
    found = _Measurement(devices, sizes, report or (lambda *_: None), now)
    matmul, memory, collectives = found.matmul(), found.memory(), found.collectives()
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    versions = [(name, version(name)) for name in ("meshwise", "jax", "jaxlib")]
    return Profile(
        created=created,
        command=command,
        versions=(*versions, ("python", platform.python_version())),
        platform=first.platform,
        device_kind=first.device_kind,
        host=_host(devices, matmul, memory, collectives, memory_bytes, created),
        matmul=matmul,
        memory=memory,
        collectives=collectives,
    )


def group_sizes(num_devices: int) -> tuple[int, ...]:
    """Return the sizes of groups in which collectives are measured: pairs, and all devices.

    Args:
        num_devices: All devices.
    """
    return tuple(n for n in dict.fromkeys((2, num_devices)) if n > 1 and num_devices % n == 0)


class _Measurement:
    """Everything that is measured on some devices."""

    def __init__(
        self, devices: Sequence[Device], sizes: Sizes, report: Report, now: Callable[[], float]
    ) -> None:
        self._devices, self._sizes, self._report, self._now = devices, sizes, report, now
        self._groups = group_sizes(len(devices))
        self._num_done = 0
        self._num_all = sizes.num_matmuls + len(sizes.memory)
        self._num_all += len(self._groups) * len(COLLECTIVES) * len(sizes.collectives)

    def matmul(self) -> tuple[MatmulPoint, ...]:
        """Measure products."""
        return tuple(
            self._product(dtype, size) for dtype, rows in self._sizes.matmul for size in rows
        )

    def memory(self) -> tuple[MemoryPoint, ...]:
        """Measure passes over memory, without what a call takes that does nothing."""
        call_s = seconds_a_turn(memory_passes(self._devices, 1), self._sizes.effort, self._now)
        return tuple(self._pass(num_bytes, call_s) for num_bytes in self._sizes.memory)

    def collectives(self) -> tuple[CollectivePoint, ...]:
        """Measure collectives."""
        return tuple(
            self._collective(kind, group, num_bytes)
            for group in self._groups
            for kind in COLLECTIVES
            for num_bytes in self._sizes.collectives
        )

    def _product(self, dtype: str, size: int) -> MatmulPoint:
        def text(found: float) -> str:
            rate = flop_text(2.0 * size**3 / found)
            return f"{dtype} product of {size} x {size}: {seconds_text(found)}, {rate}/s a device"

        # Without it JAX makes float32 of float64.
        with jax.enable_x64(dtype == "float64"):
            times = self._sizes.times_a_turn
            loop = matmul_loop(self._devices, dtype, size, times_a_turn=times)
            found = self._seconds(loop, text, times=times)
        return MatmulPoint(dtype=dtype, size=size, seconds=found)

    def _pass(self, num_bytes: int, call_s: float) -> MemoryPoint:
        def text(found: float) -> str:
            rate = bytes_text(num_bytes / found)
            return f"memory, {bytes_text(num_bytes)}: {seconds_text(found)}, {rate}/s a device"

        run = memory_passes(self._devices, num_bytes)
        return MemoryPoint(num_bytes=num_bytes, seconds=self._seconds(run, text, call_s=call_s))

    def _collective(self, kind: str, group: int, num_bytes: int) -> CollectivePoint:
        # Every device's part of its part is a whole number of elements.
        unit = 4 * group * group
        num_bytes = max(num_bytes // unit, 1) * unit

        def text(found: float) -> str:
            return f"{kind} of {bytes_text(num_bytes)} over {group}: {seconds_text(found)}"

        times = self._sizes.times_a_turn
        loop = collective_loop(self._devices, kind, group, num_bytes, times_a_turn=times)
        found = self._seconds(loop, text, times=times)
        return CollectivePoint(kind=kind, group_size=group, num_bytes=num_bytes, seconds=found)

    def _seconds(
        self,
        run: Callable[[int], object],
        text: Callable[[float], str],
        *,
        times: int = 1,
        call_s: float = 0.0,
    ) -> float:
        """Return the seconds of one of the times that a turn does its work, and report them."""
        whole = seconds_a_turn(run, self._sizes.effort, self._now) / times
        # Noise must not make time of nothing.
        found = max(whole - call_s, whole / 10)
        self._num_done += 1
        self._report(self._num_done, self._num_all, text(found))
        return found


def _host(
    devices: Sequence[Device],
    matmul: Sequence[MatmulPoint],
    memory: Sequence[MemoryPoint],
    collectives: Sequence[CollectivePoint],
    memory_bytes: int,
    created: str,
) -> HostSpec:
    """Return what the cost model uses of the measurements."""
    kind = devices[0].device_kind
    count = len(devices)
    source = f"measured by meshwise calibrate on {created}, {counted(count, 'device')} at once"
    device = DeviceSpec(
        name="virtual CPU" if devices[0].platform == "cpu" else kind,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=memory_rate(memory),
        flop_per_s=dense_rates(matmul),
        source=source,
        dense_times=dense_times(matmul),
    )
    if collectives:
        link, note = link_of(collectives), "NIC not measured, as the link"
    else:
        link = Link(latency_s=MICRO, bytes_per_s=device.memory_bytes_per_s)
        note = "one device: link and NIC not measured"
    return HostSpec(
        name=f"{count} x {device.name}",
        num_devices=count,
        device=device,
        link=link,
        nic=link,
        num_nics=count if devices[0].platform != "cpu" else 1,
        source=f"{source}; {note}",
    )
