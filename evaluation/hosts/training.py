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
from meshwise.cluster.cpu_host import cpu_host
from meshwise.cluster.description.toml_text import cluster_toml
from meshwise.cluster.host import HostGroup, Link

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
        name = f"{testbed.num_hosts} hosts of {socket.gethostname()}"
        groups = [HostGroup(count=testbed.num_hosts, host=host)]
        described.write_text(cluster_toml(name, groups), encoding="utf-8")
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


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
