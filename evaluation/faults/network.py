"""Faults of hosts that no launcher watches: links that are cut, processes that die."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.job import start_on_hosts
from evaluation.hosts.testbed import Testbed

_RATE = "100mbit"
_NUM_STEPS = 300
# Steps before a fault.
_BEFORE = 20
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    """What became of two processes on two hosts.

    Attributes:
        what: What was done to the second host.
        codes: The exit codes of the processes; None for one that had to be killed.
        gap_s: The longest time between two steps after the fault, or until the process of the first
            host had ended, in seconds.
        losses: The losses that process 0 said, by step.
        said: What process 0 said of the fault.
    """

    what: str
    codes: tuple[int | None, ...]
    gap_s: float
    losses: dict[int, str]
    said: str

    def row(self) -> str:
        """Return a row of a table."""
        said = self.said.replace("|", "/")
        codes = ", ".join("killed" if code is None else str(code) for code in self.codes)
        return f"| {self.what} | {len(self.losses)} | {self.gap_s:.1f} s | {codes} | {said} |"


HEAD = [
    "| what happens to host 1 | steps done | longest step, or end, after it | exit codes "
    "| what host 0 says |",
    "| --- | --- | --- | --- | --- |",
]


def host_outcomes(folder: Path) -> Iterator[HostOutcome]:
    """Yield what becomes of a job of 300 steps under each fault.

    Args:
        folder: For checkpoints.
    """
    for number, (what, act) in enumerate(_ACTIONS.items()):
        with Testbed(hosts=2, rate=_RATE) as testbed:
            yield _outcome(testbed, folder / str(number), what, act)


_Act = Callable[[Testbed, subprocess.Popen[str]], None]


def _nothing(testbed: Testbed, process: subprocess.Popen[str]) -> None:
    del testbed, process


def _cut_for(seconds: float) -> _Act:
    def act(testbed: Testbed, process: subprocess.Popen[str]) -> None:
        del process
        testbed.cut(1)
        time.sleep(seconds)
        with suppress(TestbedError):  # The hosts may be gone.
            testbed.mend(1)

    return act


def _signal(number: int) -> _Act:
    def act(testbed: Testbed, process: subprocess.Popen[str]) -> None:
        del testbed
        os.kill(process.pid, number)

    return act


_ACTIONS: dict[str, _Act] = {
    "nothing": _nothing,
    "its link is cut for 5 s": _cut_for(5.0),
    "its link is cut for 60 s": _cut_for(60.0),
    "its process is killed": _signal(signal.SIGKILL),
    "its process is stopped": _signal(signal.SIGSTOP),
}


def _outcome(testbed: Testbed, folder: Path, what: str, act: _Act) -> HostOutcome:
    arguments = ["evaluation.faults.survivor", str(folder), "2", str(_NUM_STEPS)]
    processes = start_on_hosts(testbed, 1, arguments)
    times: list[float] = []
    losses: dict[int, str] = {}
    said: list[str] = []
    at_fault = threading.Event()

    def read(number: int) -> None:
        printed = processes[number].stdout
        assert printed is not None
        with printed:
            for line in printed:
                if number == 0 and line.startswith("loss "):
                    _, step, loss = line.split()
                    losses[int(step)] = loss
                    times.append(time.monotonic())
                    if int(step) == _BEFORE:
                        at_fault.set()
                elif number == 0 and line.startswith("meshwise: "):
                    said.append(line.removeprefix("meshwise: ").strip())
        at_fault.set()

    readers = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(2)]
    for reader in readers:
        reader.start()
    at_fault.wait(_LIMIT_S)
    begin_s = time.monotonic()
    threading.Thread(target=act, args=(testbed, processes[1]), daemon=True).start()
    _wait(processes[0], _LIMIT_S)
    end_s = time.monotonic()
    _wait(processes[1], 15.0)
    codes = tuple(process.poll() for process in processes)
    for process, reader in zip(processes, readers, strict=True):
        process.kill()
        process.wait()
        reader.join()
    marks = [begin_s, *(at_s for at_s in times if at_s > begin_s)]
    gaps = [after - before for before, after in itertools.pairwise(marks)]
    if codes[0]:
        gaps.append(end_s - marks[-1])
    return HostOutcome(
        what=what,
        codes=codes,
        gap_s=max(gaps, default=0.0),
        losses=losses,
        said="; ".join(said),
    )


def _wait(process: subprocess.Popen[str], limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return
