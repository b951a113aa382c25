"""Memory of a device that a program cannot have: what else the process and the runtime hold."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.targets.catalog import CompileTarget
from meshwise.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """One part of the memory that is kept back.

    Attributes:
        name: What holds it.
        num_bytes: How much.
        source: Where the number is from.
    """

    name: str
    num_bytes: int
    source: str


# Fragmentation of the allocator, as a share of the memory.  Assumption: arrays of a step keep
# their sizes, so that the allocator finds the same places in every step.
_FRAGMENTATION = 0.02


def reserves(target: CompileTarget) -> tuple[Reserve, ...]:
    """Return what is kept back on a device, part by part.

    Args:
        target: The kind of device.
    """
    fragmentation = Reserve(
        name="fragmentation",
        num_bytes=int(_FRAGMENTATION * target.memory_bytes),
        source=f"assumed: {_FRAGMENTATION:.0%} of the memory",
    )
    if target.gpu is None:
        runtime = Reserve(
            name="TPU runtime",
            num_bytes=256 * MIB,
            source="assumed; libtpu keeps room for its own programs and infeed",
        )
        return runtime, fragmentation
    return (
        Reserve(
            name="CUDA context and modules",
            num_bytes=600 * MIB,
            source="assumed; a context with loaded libraries holds 300 to 600 MB (nvidia-smi)",
        ),
        Reserve(
            name="NCCL buffers",
            num_bytes=1024 * MIB,
            source="assumed; NCCL_BUFFSIZE of 4 MiB for each channel, peer and protocol",
        ),
        fragmentation,
    )


def usable_bytes(target: CompileTarget) -> int:
    """Return the bytes that programs may hold on one device.

    Args:
        target: The kind of device.
    """
    return target.memory_bytes - sum(part.num_bytes for part in reserves(target))
