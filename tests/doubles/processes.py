"""Jobs of several processes on this machine, for tests: all end, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: Its exit code; minus a signal that ended it.
        text: What it printed.
    """

    code: int
    text: str


def run_job(
    script: str,
    devices: Sequence[int],
    args: Sequence[str] = (),
    *,
    limit_s: float = 300.0,
    each: Sequence[Sequence[str]] = (),
) -> list[Ended]:
    """Run a script of `tests/hosts` in processes that `jax.distributed` joins.

    It gets on its command line the coordinator's address, how many processes there are, its number,
    how many virtual CPU devices it has, and the arguments; `hosts.joined.join` takes the first of
    these.

    Args:
        script: The name of its module, as `hosts.meaning`.
        devices: For each process its virtual devices.
        args: More arguments, for all processes.
        limit_s: After so long all are killed.
        each: More arguments for each process.

    Returns:
        The processes by number.
    """
    address = f"127.0.0.1:{free_port()}"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    started: list[tuple[subprocess.Popen[bytes], object]] = []
    deadline = time.monotonic() + limit_s
    try:
        for number, count in enumerate(devices):
            told = [address, str(len(devices)), str(number), str(count), *args]
            told += each[number] if each else ()
            printed = tempfile.TemporaryFile()  # noqa: SIM115 (read below)
            process = subprocess.Popen(
                [sys.executable, "-m", script, *told],
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            started.append((process, printed))
        found: list[Ended] = []
        for process, printed in started:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                _kill(process)
            printed.seek(0)  # type: ignore[attr-defined]
            text = printed.read().decode(errors="replace")  # type: ignore[attr-defined]
            found.append(Ended(code=process.returncode, text=text))
        return found
    finally:
        for process, printed in started:
            _kill(process)
            printed.close()  # type: ignore[attr-defined]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def texts(ended: Sequence[Ended]) -> str:
    """Return what all processes printed, for the message of a failed test."""
    parts = (f"process {n} ended with {e.code}:\n{e.text[-6000:]}" for n, e in enumerate(ended))
    return "\n".join(parts)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """JAX catches SIGTERM, so it is not asked."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
