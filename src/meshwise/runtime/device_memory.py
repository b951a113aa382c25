"""How much memory devices have."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from meshwise.errors import ProgramError
from meshwise.runtime.devices import Device


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

    Source: `memory_analysis()`, argument + output - alias + temp.  Its `peak_memory_in_bytes`
    omits temporaries in JAX 0.10.2.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise ProgramError("the backend gives no memory analysis of the compiled program")
    return (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )
