"""How much memory devices have, and what compiled programs hold of it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from meshwise.errors import ProgramError
from meshwise.runtime.devices import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBytes:
    """What a compiler says of a program: bytes of one device.

    Attributes:
        argument_bytes: Arguments.
        output_bytes: Results.
        alias_bytes: Results that lie where donated arguments lay.
        temporary_bytes: Everything else, at its highest.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Bytes while the program runs: arguments, results, temporaries."""
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return held + self.temporary_bytes


def reported_bytes(stats: Any) -> CompiledBytes:
    """Return what a compiler says of a program.

    Args:
        stats: As the executable reports them.  Their `peak_memory_in_bytes` omits temporaries in
            JAX 0.10.2.
    """
    return CompiledBytes(
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        temporary_bytes=stats.temp_size_in_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """What is in use of a memory, in bytes; None where it is not known.

    Attributes:
        held_bytes: Now.
        peak_bytes: At most, so far.
    """

    held_bytes: int | None
    peak_bytes: int | None


def held_memory(devices: Sequence[Device]) -> HeldMemory:
    """Return what the fullest device holds; virtual CPU devices hold the memory of their process.

    Args:
        devices: The devices of this process, all of one kind.
    """
    if devices[0].platform == "cpu":
        # Darwin counts bytes, others KiB.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        held = resident_bytes()
        # Linux counts the one in batches, and may be behind.
        return HeldMemory(held_bytes=held, peak_bytes=max(peak, held or 0))
    stats = [device.memory_stats() or {} for device in devices]
    return HeldMemory(
        held_bytes=max((s["bytes_in_use"] for s in stats if "bytes_in_use" in s), default=None),
        peak_bytes=max(
            (s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s), default=None
        ),
    )


def resident_bytes() -> int | None:
    """Return the memory that this process has in use, in bytes; None where only Linux says it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def host_memory_bytes() -> int:
    """Return the memory of this host, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_memory_bytes(devices: Sequence[Device]) -> int | None:
    """Return the bytes that JAX may use of one device; None if it does not say.

    Virtual CPU devices share the memory of their host.

    Args:
        devices: The devices of this process, all of one kind.
    """
    if devices[0].platform == "cpu":
        return host_memory_bytes() // len(devices)
    return (devices[0].memory_stats() or {}).get("bytes_limit")


def device_peak_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the bytes that one device holds while a program runs: arguments, results, temporaries.

    Args:
        compiled: What `jax.jit(...).lower(...).compile()` returns.

    Raises:
        ProgramError: The backend does not analyse memory.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise ProgramError("the backend gives no memory analysis of the compiled program")
    return reported_bytes(stats).peak_bytes
