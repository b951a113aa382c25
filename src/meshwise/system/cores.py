"""Cores of this machine."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

# Microseconds of processor time in each period, and the period: the limit of a container.
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def schedulable_cores() -> int:
    """Return on how many cores this process may run; XLA:CPU has so many threads."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS.
        return os.cpu_count() or 1


def usable_cores(limit: Path = _CPU_MAX) -> int:
    """Return how many cores this process can keep busy, at least 1.

    A container may get less processor time than there are cores on which it may run.

    Args:
        limit: Where Linux says how much processor time this container has (cgroup v2).
    """
    cores = schedulable_cores()
    # Without a container there is no file, and "max" is no number.
    with suppress(OSError, ValueError):
        quota, period = map(int, limit.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return max(cores, 1)
