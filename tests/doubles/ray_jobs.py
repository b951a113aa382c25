"""Jobs on a Ray of their own, which leave no process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from evaluation.hosts.obstacle import obstacle
from evaluation.hosts.testbed import Testbed

from doubles.processes import TESTS

EXAMPLES = TESTS.parent / "examples" / "hosts"
MARK = "MESHWISE_TEST_MARK"
_NODE = "MESHWISE_TEST_NODE"
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: meshwise[ray]"
)
needs_testbed = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """Give the variables of a Ray of its own; afterwards none of its processes is left."""
    # Paths of Ray's sockets may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    mark = Path(folder).name
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, sys.path)])
    own = {"PYTHONPATH": path, "RAY_TMPDIR": folder, MARK: mark, "JAX_PLATFORMS": "cpu"}
    own |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        yield {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | own
        deadline = time.monotonic() + 30
        while left := processes_with(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
    finally:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def processes_with(mark: str, name: str = "", *, variable: str = MARK) -> dict[int, str]:
    """Return processes with a mark in their environment, and what they are."""
    wanted = f"{variable}={mark}\0".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command and name in command:
                    found[int(folder.name)] = command
        except OSError:
            continue
    return found


class RayNodes:
    """Nodes of Ray with a CPU each, one on each host of a testbed.

    Attributes:
        address: Of the head, which is on host 0.
    """

    def __init__(self, testbed: Testbed, variables: Mapping[str, str]) -> None:
        """None has started.

        Args:
            testbed: The hosts.
            variables: The environment of each node.
        """
        self.address = f"{testbed.address(0)}:6379"
        self._testbed, self._variables = testbed, dict(variables)
        self._marks: dict[int, str] = {}

    def start(self, host: int) -> None:
        """Start a node; the head first."""
        number = sum(mark.startswith(f"{host}.") for mark in self._marks.values())
        own = f"{self._variables['RAY_TMPDIR']}/{host}.{number}"
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        of_head = ["--head", "--port=6379", "--include-dashboard=false"]
        told = of_head if host == 0 else [f"--address={self.address}"]
        # Sockets of nodes that start at once would take the same names.
        place = [f"--node-ip-address={self._testbed.address(host)}", f"--temp-dir={own}"]
        variables = {**self._variables, _NODE: own}
        self._marks[host] = own
        self._testbed.start(host, [*start, *told, *place], variables, subprocess.DEVNULL)

    def processes(self, host: int, name: str = "") -> list[int]:
        """Return the processes of a node whose command lines have a text."""
        return list(processes_with(self._marks[host], name, variable=_NODE))

    def kill(self, host: int) -> None:
        """Kill all processes of a node."""
        for process in self.processes(host):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
