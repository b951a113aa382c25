"""The main job in stages on shaped hosts: what it takes beside what was predicted."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from evaluation.hosts.job import run_on_hosts
from evaluation.hosts.stream import plain_stream
from evaluation.hosts.testbed import Testbed
from meshwise.cluster.cpu import cpu_host
from meshwise.cluster.description.host_table import host_table
from meshwise.cluster.host import HostSpec, Link

_STREAM_BYTES = 2**24
# Of a small message between two processes of this machine, there and back by half.
_LATENCY_S = 100e-6


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
        return run_on_hosts(
            testbed,
            devices_per_host,
            [
                *("meshwise", "train", "--hosts", str(testbed.num_hosts)),
                *("--devices", str(num_devices), "--cluster", str(described)),
                *("--out", folder, *arguments),
            ],
            lambda number, line: say(line if number == 0 else f"[host {number}] {line}"),
        )


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


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
