"""How much memory devices have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def host_memory_bytes() -> int:
    """Memory of this host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_memory_bytes(devices: Sequence[Any]) -> int | None:
    """What JAX may use of one device; None if it does not say.

    Virtual CPU devices share the memory of their host.
    """
    if devices[0].platform == "cpu":
        return host_memory_bytes() // len(devices)
    return (devices[0].memory_stats() or {}).get("bytes_limit")
