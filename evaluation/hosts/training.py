"""The main job in stages on shaped hosts: what it takes beside what was predicted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from evaluation.hosts.stream import plain_stream
from evaluation.hosts.testbed import Testbed
from meshwise.cluster.cpu import cpu_host
from meshwise.cluster.description.host_table import host_table
from meshwise.cluster.host import HostSpec, Link
from meshwise.hosts.member import JobMember

_PORT = 8476
_STREAM_BYTES = 2**24
# Of a small message between two processes of this machine, there and back by half.
_LATENCY_S = 100e-6
_LOOK_EVERY_S = 0.2
# When one process has failed the others may still say what they know of it.
_GRACE_S = 3.0


def train_on_hosts(
    testbed: Testbed,
    devices_per_host: int,
    arguments: Sequence[str],
    say: Callable[[str], object],
) -> int:
    """Run `meshwise train` with a process on each host of a testbed.

    Args:
        testbed: The hosts.
        devices_per_host: Virtual CPU devices of each.
        arguments: More arguments of `meshwise train`.
        say: Takes what is to be shown, line by line.

    Returns:
        The exit code of the first process that failed; 0 if all ended well.
    """
    rate = plain_stream(testbed, 0, testbed.num_hosts - 1, _STREAM_BYTES)
    say(
        f"{testbed.num_hosts} hosts of {devices_per_host} virtual CPU devices; a plain stream "
        f"between two of them carries {rate / 1e6:.1f} MB/s"
    )
    num_devices = testbed.num_hosts * devices_per_host
    host = cpu_host(devices_per_host, host_memory_bytes=_memory(), num_sharing=num_devices)
    host = replace(host, nic=Link(latency_s=_LATENCY_S, bytes_per_s=rate), source="this testbed")
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "hosts.toml"
        described.write_text(cluster_text(host, testbed.num_hosts), encoding="utf-8")
        command = [
            *(sys.executable, "-P", "-m", "meshwise.hosts.worker", "-m", "meshwise", "train"),
            *("--hosts", str(testbed.num_hosts), "--devices", str(num_devices)),
            *("--cluster", str(described), "--out", folder, *arguments),
        ]
        processes: list[subprocess.Popen[str]] = []
        for number in range(testbed.num_hosts):
            member = JobMember(
                coordinator=f"{testbed.address(0)}:{_PORT}",
                num_processes=testbed.num_hosts,
                process_id=number,
            )
            environment = {
                **os.environ,
                **member.variables(),
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(devices_per_host),
                "NPROC": str(max(2 * devices_per_host, os.cpu_count() or 1)),
            }
            processes.append(testbed.start(number, command, environment, subprocess.PIPE))
        threads = [
            threading.Thread(target=_pass_on, args=(number, process.stdout, say))
            for number, process in enumerate(processes)
        ]
        for thread in threads:
            thread.start()
        code = _first_failure(processes)
        for thread in threads:
            thread.join()
    return code


def _first_failure(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Return the exit code of the first process that fails, or 0; no process runs any more."""
    while True:
        codes = [process.poll() for process in processes]
        failed = next((code for code in codes if code), None)
        if failed is not None:
            time.sleep(_GRACE_S)
            for process in processes:
                process.kill()
            return failed
        if None not in codes:
            return 0
        time.sleep(_LOOK_EVERY_S)


def cluster_text(host: HostSpec, count: int) -> str:
    """Return the description of a cluster of equal hosts, as `Cluster.from_file` reads it.

    Args:
        host: The kind of the hosts.
        count: How many there are.
    """
    table = {"count": count, "host": host_table(host)}
    lines = [f"{name} = {_toml(value)}" for name, value in table.items()]
    return "\n".join([f'name = "{count} hosts of {socket.gethostname()}"', "[[hosts]]", *lines, ""])


def _toml(value: object) -> str:
    """Return a value as TOML on one line."""
    match value:
        case dict():
            parts = ", ".join(f"{name} = {_toml(part)}" for name, part in value.items())
            return f"{{ {parts} }}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case _:
            return repr(value)


def _pass_on(number: int, printed: IO[str] | None, say: Callable[[str], object]) -> None:
    """Show what a process prints; process 0 speaks for all."""
    for line in printed or ():
        say(line.rstrip("\n") if number == 0 else f"[host {number}] {line.rstrip()}")


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
