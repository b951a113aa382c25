"""Memory of a device that a program cannot have: what else the process and the runtime hold."""

from __future__ import annotations

from meshwise.targets.compile_target import CompileTarget

# Fragmentation of the allocator, as a share of the memory.  Assumption: arrays of a step keep
# their sizes, so that the allocator finds the same places in every step.
_FRAGMENTATION = 0.02


def reserves(target: CompileTarget) -> dict[str, int]:
    """Return what is kept back on a device: the names of those that hold it, and bytes.

    Args:
        target: The kind of device.
    """
    return {**target.reserves, "fragmentation": int(_FRAGMENTATION * target.memory_bytes)}


def usable_bytes(target: CompileTarget) -> int:
    """Return the bytes that programs may hold on one device.

    Args:
        target: The kind of device.
    """
    return target.memory_bytes - sum(reserves(target).values())
