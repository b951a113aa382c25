"""When this process began, so that a time limit covers what Python did before the command."""

from __future__ import annotations

import os
import time

# Imports do not take longer; what says so is wrong.
_MOST_S = 120.0


def process_start() -> float:
    """Return the beginning of this process by `time.monotonic`, in seconds."""
    busy = time.process_time()
    age = _age()
    if age is None or not busy - 1.0 <= age <= _MOST_S:
        # At least as long as it was busy.
        age = busy
    return time.monotonic() - age


def _age() -> float | None:
    """Return the seconds since this process began, from Linux's list of processes, or None."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # The name in brackets may hold anything; 20 fields after it comes the start in ticks.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
