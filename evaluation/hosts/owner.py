"""Names of testbeds: each says which process made it, so that others know when that one is gone."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"meshwise-(\d+)-(\d+)-\d+-(?:host\d+|switch|probe)")


def prefix(serial: int) -> str:
    """Return how the names of a testbed of this process begin.

    Args:
        serial: The number of the testbed in this process.
    """
    pid = os.getpid()
    return f"meshwise-{pid}-{_start_ticks(pid)}-{serial}-"


def is_abandoned(name: str) -> bool:
    """Return whether a testbed of a process that has ended has this namespace.

    Args:
        name: The name of any network namespace.
    """
    found = _NAME.fullmatch(name)
    # Numbers of processes are used again: only together with the start they name one process.
    return found is not None and _start_ticks(int(found[1])) != int(found[2])


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine did; None if it has ended.

    Source: proc_pid_stat(5), field 22; field 2 is in parentheses and may hold anything.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie has ended; only its parent has not asked yet.
    return None if fields[0] == "Z" else int(fields[19])
