"""A job on the hosts of a testbed: one process on each, joined by `jax.distributed`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from evaluation.hosts.testbed import Testbed
from meshwise.hosts.member import JobMember
from meshwise.system.cpu_threads import thread_variables

_PORT = 8476
_LOOK_EVERY_S = 0.2
# When one process has failed the others may still say what they know of it.
_GRACE_S = 3.0


def run_on_hosts(
    testbed: Testbed,
    devices_per_host: int,
    arguments: Sequence[str],
    say: Callable[[int, str], object],
) -> int:
    """Run a module with a process on each host of a testbed.

    Args:
        testbed: The hosts.
        devices_per_host: Virtual CPU devices of each.
        arguments: What follows `python`'s `-m`: the name of the module, and its arguments.
        say: Takes each line that a process prints, with the number of its host; lines come from
            several threads.

    Returns:
        The exit code of the first process that failed; 0 if all ended well.
    """
    processes = start_on_hosts(testbed, devices_per_host, arguments)

    def pass_on(number: int) -> None:
        printed = processes[number].stdout
        assert printed is not None
        with printed:
            for line in printed:
                say(number, line.rstrip("\n"))

    threads = [threading.Thread(target=pass_on, args=(n,)) for n in range(testbed.num_hosts)]
    for thread in threads:
        thread.start()
    code = _first_failure(processes)
    for thread in threads:
        thread.join()
    return code


def start_on_hosts(
    testbed: Testbed,
    devices_per_host: int,
    arguments: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[subprocess.Popen[str]]:
    """Start a module with a process on each host of a testbed; nobody watches them.

    Args:
        testbed: The hosts.
        devices_per_host: Virtual CPU devices of each.
        arguments: What follows `python`'s `-m`: the name of the module, and its arguments.
        variables: More of the environment of each.

    Returns:
        The processes; what they print comes through pipes.
    """
    command = [sys.executable, "-P", "-m", "meshwise.hosts.worker", "-m", *arguments]
    processes: list[subprocess.Popen[str]] = []
    for number in range(testbed.num_hosts):
        member = JobMember(
            coordinator=f"{testbed.address(0)}:{_PORT}",
            num_processes=testbed.num_hosts,
            process_id=number,
        )
        environment = {
            **os.environ,
            **variables,
            **member.variables(),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices_per_host),
            **thread_variables(devices_per_host),
        }
        processes.append(testbed.start(number, command, environment, subprocess.PIPE))
    return processes


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
