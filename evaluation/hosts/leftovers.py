"""The removal of namespaces with all that runs in them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from evaluation.hosts.iproute import TestbedError, iproute
from evaluation.hosts.owner import is_abandoned

# `ip netns exec` mounts the files of this folder's folder of the same name over those of /etc.
FILES = Path("/etc/netns")
# What was killed is gone within milliseconds, unless it is in the kernel.
_KILL_S = 10.0


def namespaces() -> list[str]:
    """Return the names of all network namespaces of this machine, and of folders of their files."""
    listed = iproute("ip", "netns", "list").splitlines()
    files = [path.name for path in FILES.iterdir()] if FILES.is_dir() else []
    return sorted({line.split()[0] for line in listed if line.strip()} | set(files))


def clean_leftovers() -> list[str]:
    """Remove what testbeds left whose process has ended: processes, namespaces, files.

    Returns:
        The names of the namespaces that were removed.

    Raises:
        TestbedError: something could not be removed.
    """
    names = [name for name in namespaces() if is_abandoned(name)]
    remove(names)
    return names


def remove(names: Iterable[str]) -> None:
    """Kill what runs in namespaces, and delete them with their interfaces and files.

    Args:
        names: The names; those that are not there are passed over.

    Raises:
        TestbedError: something is still there.
    """
    names = list(names)
    problems: list[str] = []
    # All processes first: those of one host write errors when those of another are gone.
    for name in names:
        try:
            _kill_processes(name)
        except TestbedError as error:
            problems.append(str(error))
    for name in names:
        # Another process may have removed it by now: what counts is that it is gone.
        with suppress(TestbedError):
            iproute("ip", "netns", "delete", name)
        shutil.rmtree(FILES / name, ignore_errors=True)
    still = sorted(set(names) & set(namespaces()))
    if still:
        raise TestbedError(f"namespaces that cannot be removed: {', '.join(still)}. {problems}")


def _kill_processes(name: str) -> None:
    deadline_s = time.monotonic() + _KILL_S
    while pids := _pids(name):
        if time.monotonic() > deadline_s:
            raise TestbedError(f"processes of {name} that cannot be killed: {pids}")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What they started in the meantime is found in the next round.
        time.sleep(0.005)


def _pids(name: str) -> list[int]:
    if not Path("/run/netns", name).exists():
        return []
    with suppress(TestbedError):
        return [int(pid) for pid in iproute("ip", "netns", "pids", name).split()]
    return []
