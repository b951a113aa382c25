"""GPUs for which programs can be compiled without having one.

XLA:GPU compiles for the properties of a device, which are a text.  The numbers are those that
drivers report, as listed in XLA's own descriptions (openxla/xla,
xla/backends/gpu/target_config/specs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwise.targets.compile_target import TargetSlice
from meshwise.units import MIB

# The versions of CUDA and cuDNN that JAX's CUDA 12 wheels are made for; those for CUDA 13 compile a
# GPT to the same bytes with them (0.10.2).
_CUDA, _CUDNN = (12, 8), (9, 10)
# Assumption: a context with loaded libraries holds 300 to 600 MB (nvidia-smi).
_CONTEXT_BYTES = 600 * MIB
# Assumption: NCCL_BUFFSIZE of 4 MiB for each channel, peer and protocol.
_NCCL_BYTES = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """What XLA:GPU must know of a device.

    Attributes:
        description: The name that the driver reports.
        compute_capability: Major and minor version.
        is_accelerated: Whether instructions are used that only this version has (`sm_90a`).
        num_cores: Streaming multiprocessors.
        fpus_per_core: Units for float32 in each.
        shared_bytes_per_core: Shared memory of a multiprocessor.
        shared_bytes_per_block: Shared memory that one block may have at most.
        memory_bytes: Memory of the device.
        memory_bytes_per_s: Bandwidth of the memory.
        l2_bytes: Second-level cache.
        clock_ghz: Clock rate.
    """

    description: str
    compute_capability: tuple[int, int]
    is_accelerated: bool
    num_cores: int
    fpus_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    memory_bytes: int
    memory_bytes_per_s: int
    l2_bytes: int
    clock_ghz: float

    def text(self) -> str:
        """Return the properties as the text of a `GpuTargetConfigProto`."""
        major, minor = self.compute_capability
        extension = "ACCELERATED_FEATURES" if self.is_accelerated else "NONE"
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared_bytes_per_core,
            "threads_per_core_limit": 2048,
            "core_count": self.num_cores,
            "fpus_per_core": self.fpus_per_core,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": self.memory_bytes_per_s,
            "l2_cache_size": self.l2_bytes,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": self.memory_bytes,
            "shared_memory_per_block_optin": self.shared_bytes_per_block,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        capability = f"major: {major} minor: {minor} feature_extension: {extension}"
        lines = [
            *(f"{name}: {value}" for name, value in fields.items()),
            f"cuda_compute_capability {{ {capability} }}",
        ]
        body = " ".join(lines)
        return (
            f'gpu_device_info {{ {body} }} platform_name: "CUDA" '
            f"dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} }} "
            f"runtime_version {{ major: {_CUDA[0]} minor: {_CUDA[1]} }} "
            f'device_description_str: "{self.description}"'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A kind of GPU, and how XLA:GPU is asked for a number of them.

    Attributes:
        name: Name in the catalog, as `h100`.
        device: Name of the device in `cluster.catalog`.
        gpu: Properties of the device.
        devices_per_host: Devices of one host, at most.
    """

    name: str
    device: str
    gpu: GpuProperties
    devices_per_host: int = 8

    @property
    def platform(self) -> str:
        """How JAX names the platform."""
        return "cuda"

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the device: in `cluster.catalog`, and as the driver reports it."""
        return (self.device, self.gpu.description)

    @property
    def memory_bytes(self) -> int:
        """Memory of one device."""
        return self.gpu.memory_bytes

    @property
    def reserves(self) -> Mapping[str, int]:
        """What the runtime keeps of the memory: the names of those that hold it, and bytes."""
        return {"CUDA context and modules": _CONTEXT_BYTES, "NCCL buffers": _NCCL_BYTES}

    @property
    def cycles_per_s(self) -> None:
        """None: XLA:GPU says seconds."""
        return None

    def slice(self, num_devices: int) -> TargetSlice:
        """Return how the compiler is asked for so many devices.

        Args:
            num_devices: Devices of the mesh.

        Returns:
            "slices x hosts x devices of a host", as "1x2x8", and the properties of a device.
        """
        each = math.gcd(num_devices, min(num_devices, self.devices_per_host))
        topology = f"1x{num_devices // each}x{each}"
        return TargetSlice(
            name=self.platform, options={"topology": topology, "target_config": self.gpu.text()}
        )


_A100_80 = GpuProperties(
    description="NVIDIA A100-SXM4-80GB",
    compute_capability=(8, 0),
    is_accelerated=False,
    num_cores=108,
    fpus_per_core=64,
    shared_bytes_per_core=167936,
    shared_bytes_per_block=166912,
    memory_bytes=85100068864,
    memory_bytes_per_s=2039040000000,
    l2_bytes=41943040,
    clock_ghz=1.41,
)
_A100_40 = replace(
    _A100_80,
    description="NVIDIA A100-SXM4-40GB",
    memory_bytes=42331013120,
    memory_bytes_per_s=1555200000000,
)
_H100 = GpuProperties(
    description="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    is_accelerated=True,
    num_cores=132,
    fpus_per_core=128,
    shared_bytes_per_core=233472,
    shared_bytes_per_block=232448,
    memory_bytes=84942979072,
    memory_bytes_per_s=3352320000000,
    l2_bytes=52428800,
    clock_ghz=1.98,
)
_H200 = replace(
    _H100,
    description="NVIDIA H200 141GB HBM3e",
    memory_bytes=151397597184,
    memory_bytes_per_s=4800000000000,
)
_B200 = replace(
    _H100,
    description="NVIDIA B200",
    compute_capability=(10, 0),
    num_cores=148,
    memory_bytes=191514411008,
    memory_bytes_per_s=7672320000000,
    l2_bytes=132644864,
    clock_ghz=1.965,
)
_GB200 = replace(
    _B200,
    description="NVIDIA GB200",
    num_cores=152,
    memory_bytes=197897748480,
    memory_bytes_per_s=7928064000000,
    l2_bytes=135528448,
    clock_ghz=2.062,
)
_V100 = GpuProperties(
    description="Tesla V100-SXM2-16GB",
    compute_capability=(7, 0),
    is_accelerated=False,
    num_cores=80,
    fpus_per_core=64,
    shared_bytes_per_core=98304,
    shared_bytes_per_block=98304,
    memory_bytes=16935682048,
    memory_bytes_per_s=898048000000,
    l2_bytes=6291456,
    clock_ghz=1.53,
)

GPUS = (
    GpuTarget(name="v100", device="V100-SXM2-16GB", gpu=_V100),
    GpuTarget(name="a100-40", device="A100-SXM4-40GB", gpu=_A100_40),
    GpuTarget(name="a100-80", device="A100-SXM4-80GB", gpu=_A100_80),
    GpuTarget(name="h100", device="H100-SXM5-80GB", gpu=_H100),
    GpuTarget(name="h200", device="H200-SXM-141GB", gpu=_H200),
    GpuTarget(name="b200", device=_B200.description, gpu=_B200),
    GpuTarget(name="gb200", device="GB200 (one GPU)", gpu=_GB200, devices_per_host=4),
)
