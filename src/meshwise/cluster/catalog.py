"""Hosts and devices by name.

Peak numbers are those of the maker's datasheets.  What is reached of a peak is stated here once,
by kind of resource, and can be replaced by `meshwise calibrate` on the real device.  A host is a
set of devices with fast links between all of them, and may be several machines (`gb200-nvl72`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from meshwise.cluster.host import HostSpec, Link, PeakRate
from meshwise.cluster.mesh import DeviceSpec
from meshwise.units import GIB, GIGA, MICRO, TERA, gbit_per_s

# Large dense products reach 50 to 80 % of the tensor-core peak; whole models 31 % (Megatron-LM
# 1.2B on a V100) to 52 % (Megatron-LM 1T on A100), with the memory-bound operators in, which are
# priced apart here.  0.5 is an assumption between these.
DENSE_EFFICIENCY = 0.5
# On Hopper, fitted to six models on one H200 on 2026-11-26 (docs/measurements/gpu.md).
HOPPER_EFFICIENCY: Mapping[str, float] = MappingProxyType(
    {"bfloat16": 0.68, "float16": 0.68, "float32": 0.45}
)
# Stream-like kernels reach 75 to 90 % of the HBM peak.  Assumption.
MEMORY_EFFICIENCY = 0.8
# Rings of NCCL reach about 80 % of the one-way NVLink peak (nccl-tests: about 235 of 300 GB/s on
# an A100 host).  Assumption for all links.
LINK_EFFICIENCY = 0.8
# The runtime, NCCL buffers and fragmentation take their part of the memory.  Assumption.
USABLE_MEMORY = 0.9

# Source: latency of one ring hop, protocol "simple", in NCCL's own tuning model (graph/tuning.cc).
NVLINK_LATENCY_S = 3.4 * MICRO
RDMA_LATENCY_S = 14 * MICRO
# Assumption: one TCP message between two instances of a placement group.
TCP_LATENCY_S = 30 * MICRO
# Assumption: about one microsecond a hop on a TPU torus.
ICI_LATENCY_S = 1 * MICRO


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chip:
    """A device as its maker describes it.

    Attributes:
        name: Name of the device.
        memory_bytes: Its memory.
        memory_bytes_per_s: Peak of its memory bandwidth.
        peak_flop_per_s: Peak of dense products by dtype.
        source: Where these numbers are from.
        fitted: Share of the peak that products of a dtype reach, fitted to measured steps.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    source: str
    fitted: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def device(self) -> DeviceSpec:
        """What is reached of it."""
        return DeviceSpec(
            name=self.name,
            memory_bytes=int(self.memory_bytes * USABLE_MEMORY),
            memory_bytes_per_s=self.memory_bytes_per_s * MEMORY_EFFICIENCY,
            flop_per_s=tuple(
                sorted(
                    (dtype, rate * self.fitted.get(dtype, DENSE_EFFICIENCY))
                    for dtype, rate in self.peak_flop_per_s.items()
                )
            ),
            source=f"{self.source}; {self._reached}",
        )

    @property
    def _reached(self) -> str:
        """How much of the peaks is reached, as a text."""
        found = [f"{dtype} {share:.0%} (fitted)" for dtype, share in self.fitted.items()]
        others = "others " if found else ""
        return (
            f"dense products reach {', '.join((*found, ''))}{others}{DENSE_EFFICIENCY:.0%} of the "
            f"peak, memory {MEMORY_EFFICIENCY:.0%} (assumed)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of a host, and the way of its devices to it.

    Attributes:
        num_bytes: The memory.
        bytes_per_s: Peak of one device in one direction, while all devices of the host send.
    """

    num_bytes: float
    bytes_per_s: float


NO_HOST_MEMORY = HostMemory(num_bytes=0.0, bytes_per_s=0.0)
# Of one slot of 16 lanes in one direction: PCI-SIG, 8, 16 and 32 GT/s with 128 of 130 bits.
PCIE_3, PCIE_4, PCIE_5 = 15.75 * GIGA, 31.5 * GIGA, 63 * GIGA
# In hosts of 4 and 8 GPUs two of them share the 16 lanes of a PCIe switch (NVIDIA DGX-1 and DGX
# A100 system architecture); on Hopper assumed.
GPUS_OF_A_SWITCH = 2


def _host(
    name: str,
    num_devices: int,
    chip: _Chip,
    *,
    link: Link,
    nics: tuple[int, Link],
    source: str,
    memory: HostMemory = NO_HOST_MEMORY,
) -> HostSpec:
    """Return a host whose links and NICs reach `LINK_EFFICIENCY` of their peaks.

    Args:
        name: The name in the catalog.
        num_devices: Devices of the host.
        chip: The kind of the devices.
        link: The link of one device inside the host, at its peak.
        nics: The number of NICs, and one of them at its peak.
        source: The origin of the numbers.
        memory: Its memory, and the way of one device to it, at its peak.
    """
    num_nics, nic = nics
    return HostSpec(
        name=name,
        num_devices=num_devices,
        device=replace(
            chip.device,
            host_bytes_per_s=memory.bytes_per_s * LINK_EFFICIENCY,
            host_memory_bytes=int(memory.num_bytes * USABLE_MEMORY) // num_devices,
        ),
        link=replace(link, bytes_per_s=link.bytes_per_s * LINK_EFFICIENCY),
        nic=replace(nic, bytes_per_s=nic.bytes_per_s * LINK_EFFICIENCY),
        num_nics=num_nics,
        source=f"{source}; links and NICs reach {LINK_EFFICIENCY:.0%} of the peak (assumed)",
        peak=PeakRate(
            flop_per_s=tuple(sorted(chip.peak_flop_per_s.items())),
            memory_bytes=int(chip.memory_bytes),
            memory_bytes_per_s=chip.memory_bytes_per_s,
            link_bytes_per_s=link.bytes_per_s,
            nic_bytes_per_s=nic.bytes_per_s,
        ),
    )


# bfloat16 has no tensor cores on Volta and runs at the rate of float32.
V100 = _Chip(
    name="V100-SXM2-16GB",
    memory_bytes=16 * GIB,
    memory_bytes_per_s=900 * GIGA,
    peak_flop_per_s={
        "float16": 125 * TERA,
        "bfloat16": 15.7 * TERA,
        "float32": 15.7 * TERA,
        "float64": 7.8 * TERA,
    },
    source="NVIDIA V100 datasheet",
)

# JAX multiplies float32 on Ampere and later in TF32 unless told otherwise.
_A100_PEAK: Mapping[str, float] = {
    "bfloat16": 312 * TERA,
    "float16": 312 * TERA,
    "float32": 156 * TERA,
    "float64": 19.5 * TERA,
}
A100_40GB = _Chip(
    name="A100-SXM4-40GB",
    memory_bytes=40 * GIB,
    memory_bytes_per_s=1555 * GIGA,
    peak_flop_per_s=_A100_PEAK,
    source="NVIDIA A100 datasheet",
)
A100_80GB = _Chip(
    name="A100-SXM4-80GB",
    memory_bytes=80 * GIB,
    memory_bytes_per_s=2039 * GIGA,
    peak_flop_per_s=_A100_PEAK,
    source="NVIDIA A100 datasheet",
)

# Rates without sparsity; the datasheet's figures with sparsity are twice these.
_HOPPER_PEAK: Mapping[str, float] = {
    "bfloat16": 989 * TERA,
    "float16": 989 * TERA,
    "float32": 494 * TERA,
    "float64": 67 * TERA,
}
H100 = _Chip(
    name="H100-SXM5-80GB",
    memory_bytes=80 * GIB,
    memory_bytes_per_s=3350 * GIGA,
    peak_flop_per_s=_HOPPER_PEAK,
    source="NVIDIA H100 datasheet",
    fitted=HOPPER_EFFICIENCY,
)
H200 = _Chip(
    name="H200-SXM-141GB",
    memory_bytes=141 * GIGA,
    memory_bytes_per_s=4800 * GIGA,
    peak_flop_per_s=_HOPPER_PEAK,
    source="NVIDIA H200 datasheet",
    fitted=HOPPER_EFFICIENCY,
)


# The datasheet of the rack, over 72: 13.4 TB and 576 TB/s of HBM3e; 360 PFLOP/s in 16 bits and 180
# in TF32 with sparsity, half of that without; 2880 TFLOP/s in float64.
GB200 = _Chip(
    name="GB200 (one GPU)",
    memory_bytes=13.4 * TERA / 72,
    memory_bytes_per_s=576 * TERA / 72,
    peak_flop_per_s={
        "bfloat16": 2500 * TERA,
        "float16": 2500 * TERA,
        "float32": 1250 * TERA,
        "float64": 40 * TERA,
    },
    source="NVIDIA GB200 NVL72 datasheet",
)


def _tpu_peak(peak: float) -> dict[str, float]:
    # The default precision of float32 products on TPU is one pass in bfloat16.
    return {"bfloat16": peak, "float32": peak}


TPU_V4 = _Chip(
    name="TPU v4",
    memory_bytes=32 * GIB,
    memory_bytes_per_s=1228 * GIGA,
    peak_flop_per_s=_tpu_peak(275 * TERA),
    source="Google Cloud TPU v4 system architecture",
)
TPU_V5E = _Chip(
    name="TPU v5e",
    memory_bytes=16 * GIB,
    memory_bytes_per_s=819 * GIGA,
    peak_flop_per_s=_tpu_peak(197 * TERA),
    source="Google Cloud TPU v5e system architecture",
)
TPU_V5P = _Chip(
    name="TPU v5p",
    memory_bytes=95 * GIB,
    memory_bytes_per_s=2765 * GIGA,
    peak_flop_per_s=_tpu_peak(459 * TERA),
    source="Google Cloud TPU v5p system architecture",
)


# Source of bandwidth: the page of 2026 says 1600 GB/s, earlier versions 1640.
TPU_V6E = _Chip(
    name="TPU v6e",
    memory_bytes=32 * GIB,
    memory_bytes_per_s=1600 * GIGA,
    peak_flop_per_s=_tpu_peak(918 * TERA),
    source="Google Cloud TPU v6e page",
)


def _tpu_host(name: str, num_devices: int, chip: _Chip, link_bytes_per_s: float) -> HostSpec:
    """Return a TPU host: chips of all hosts of a slice meet on one torus, so no NIC is shared.

    How fast a chip reaches the memory of its host is not published.

    Args:
        name: The name in the catalog.
        num_devices: Chips of the host.
        chip: The kind of the chips.
        link_bytes_per_s: One ICI link in one direction: the chip's published bandwidth over its
            links.
    """
    link = Link(latency_s=ICI_LATENCY_S, bytes_per_s=link_bytes_per_s)
    return _host(
        name,
        num_devices,
        chip,
        link=link,
        nics=(num_devices, link),
        source=f"{chip.source}: ICI bandwidth of a chip over its links",
    )


_HOSTS = (
    # One GPU: its link is the PCIe slot, and joins it to nothing.
    _host(
        "p3.2xlarge",
        1,
        V100,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=15.75 * GIGA),
        nics=(1, Link(latency_s=TCP_LATENCY_S, bytes_per_s=gbit_per_s(10))),
        source="Amazon EC2 P3 page: network up to 10 Gbit/s; PCIe 3.0 x16",
        memory=HostMemory(num_bytes=61 * GIB, bytes_per_s=PCIE_3),
    ),
    # NVLink 200 GB/s (4 GPUs) and 300 GB/s (8) both ways together.
    _host(
        "p3.8xlarge",
        4,
        V100,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=100 * GIGA),
        nics=(1, Link(latency_s=TCP_LATENCY_S, bytes_per_s=gbit_per_s(10))),
        source="Amazon EC2 P3 page: network 10 Gbit/s",
        memory=HostMemory(num_bytes=244 * GIB, bytes_per_s=PCIE_3 / GPUS_OF_A_SWITCH),
    ),
    _host(
        "p3.16xlarge",
        8,
        V100,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=150 * GIGA),
        nics=(1, Link(latency_s=TCP_LATENCY_S, bytes_per_s=gbit_per_s(25))),
        source="Amazon EC2 P3 page: NVLink 300 GB/s both ways, network 25 Gbit/s",
        memory=HostMemory(num_bytes=488 * GIB, bytes_per_s=PCIE_3 / GPUS_OF_A_SWITCH),
    ),
    _host(
        "p4d.24xlarge",
        8,
        A100_40GB,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=300 * GIGA),
        nics=(4, Link(latency_s=TCP_LATENCY_S, bytes_per_s=gbit_per_s(100))),
        source="Amazon EC2 P4 page: NVSwitch 600 GB/s both ways, 4 x 100 Gbit/s with EFA",
        memory=HostMemory(num_bytes=1152 * GIB, bytes_per_s=PCIE_4 / GPUS_OF_A_SWITCH),
    ),
    _host(
        "dgx-a100",
        8,
        A100_80GB,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=300 * GIGA),
        nics=(8, Link(latency_s=RDMA_LATENCY_S, bytes_per_s=gbit_per_s(200))),
        source="NVIDIA DGX A100 datasheet: NVLink 600 GB/s both ways, 8 HDR ports of 200 Gbit/s "
        "for compute",
        memory=HostMemory(num_bytes=2 * TERA, bytes_per_s=PCIE_4 / GPUS_OF_A_SWITCH),
    ),
    _host(
        "dgx-h100",
        8,
        H100,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=450 * GIGA),
        nics=(8, Link(latency_s=RDMA_LATENCY_S, bytes_per_s=gbit_per_s(400))),
        source="NVIDIA DGX H100 datasheet: NVLink 900 GB/s both ways, 8 NDR ports of 400 Gbit/s",
        memory=HostMemory(num_bytes=2 * TERA, bytes_per_s=PCIE_5 / GPUS_OF_A_SWITCH),
    ),
    _host(
        "h200",
        8,
        H200,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=450 * GIGA),
        nics=(8, Link(latency_s=RDMA_LATENCY_S, bytes_per_s=gbit_per_s(400))),
        source="NVIDIA DGX H200 datasheet: links and ports as in DGX H100",
        memory=HostMemory(num_bytes=2 * TERA, bytes_per_s=PCIE_5 / GPUS_OF_A_SWITCH),
    ),
    # A whole rack: NVLink is what makes a host here, and 18 trays with 4 GPUs each share one.
    _host(
        "gb200-nvl72",
        72,
        GB200,
        link=Link(latency_s=NVLINK_LATENCY_S, bytes_per_s=900 * GIGA),
        nics=(72, Link(latency_s=RDMA_LATENCY_S, bytes_per_s=gbit_per_s(400))),
        source="NVIDIA DGX GB200 datasheet: NVLink 130 TB/s both ways for 72 GPUs, 72 ports of "
        "400 Gbit/s",
        # Two GPUs share the 900 GB/s, both ways together, between them and their CPU.
        memory=HostMemory(num_bytes=17 * TERA, bytes_per_s=900 * GIGA / 2 / 2),
    ),
    # ICI per chip in one direction: v4 2400 Gbit/s over 6 links, v5e 1600 over 4, v5p 4800 over 6,
    # v6e 3200 over 4 (800 GB/s both ways).
    _tpu_host("tpu-v4", 4, TPU_V4, gbit_per_s(2400) / 6),
    _tpu_host("tpu-v5e", 8, TPU_V5E, gbit_per_s(1600) / 4),
    _tpu_host("tpu-v5p", 4, TPU_V5P, gbit_per_s(4800) / 6),
    _tpu_host("tpu-v6e", 8, TPU_V6E, gbit_per_s(3200) / 4),
)

HOSTS: Mapping[str, HostSpec] = MappingProxyType({host.name: host for host in _HOSTS})
