"""A job with faults, run to its end, and what was seen of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.faults.faults import Fault

# What a poor link loses, and the delay of a way between two hosts.
LOSS, DELAY_S = 0.005, 0.004
_LIMIT_S = 300.0
_LOSS = re.compile(r"\[host 0\] loss (\d+) (\S+)")
_FAULT = re.compile(r"\[host \d+\] fault ")
_STARTING = re.compile(r"\[launch\] starting again")
_SEEN = re.compile(r"\[host (\d+)\] seen (.*)")
# What says that a job is about to end.
_DETECTED = re.compile(r"meshwise: process|\[launch\] host \d+ |\[launch\] cause:|detected fatal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job.

    Attributes:
        code: The exit code of its launcher.
        losses: For each step its loss as a hexadecimal text, in the order in which process 0 said
            them; steps that were run again come again.
        seen: For each process how often it came to each place, as text.
        detect_s: Seconds from each fault until a process or the launcher said it; None for what
            nobody had to say.
        end_s: Seconds from each fault until all processes had ended.
        next_step_s: Seconds from each fault until the next step was done.
        leftovers: Processes that were there when the launcher had ended.
        held: What the launcher held at each new start: bytes, and open files.
        text: What all printed.
    """

    code: int
    losses: tuple[tuple[int, str], ...]
    seen: dict[int, str]
    detect_s: tuple[float | None, ...]
    end_s: tuple[float | None, ...]
    next_step_s: tuple[float | None, ...]
    leftovers: tuple[int, ...]
    held: tuple[tuple[int, int], ...]
    text: str

    @property
    def steps(self) -> dict[int, set[str]]:
        """For each step the losses that were said."""
        found: dict[int, set[str]] = {}
        for number, loss in self.losses:
            found.setdefault(number, set()).add(loss)
        return found

    @property
    def num_repeated(self) -> int:
        """Steps that were run again, most of them after one fault."""
        found = before = 0
        for number, _ in self.losses:
            found = max(found, before - number + 1)
            before = number
        return max(found, 0)


def on_this_machine(restarts: int, *, num_processes: int = 2) -> list[str]:
    """Return what starts a job of processes of this machine, before its module and arguments.

    Args:
        restarts: How often it may be started again.
        num_processes: How many processes, with a device each.
    """
    counts = ["--hosts", str(num_processes), "--max-restarts", str(restarts)]
    return ["meshwise", "launch", *counts, "-m"]


def on_two_hosts(restarts: int) -> list[str]:
    """Return likewise what starts a job on two hosts whose links are poor.

    Args:
        restarts: How often it may be started again.
    """
    return ["evaluation.faults.requeue", str(restarts), str(LOSS), str(DELAY_S)]


def run_with_faults(
    folder: Path,
    stages: int,
    num_steps: int,
    faults: Sequence[Fault],
    *,
    starter: Callable[[int], Sequence[str]] = on_this_machine,
) -> Outcome:
    """Run a job to its end.

    Args:
        folder: Of its checkpoints.
        stages: How many; 0 for one mesh over all processes.
        num_steps: Steps in all.
        faults: What goes wrong.
        starter: What starts the job, given how often it may be started again.
    """
    arguments = [str(folder), str(stages), str(num_steps), *(fault.text() for fault in faults)]
    restarts = 1 + max((fault.attempt for fault in faults), default=-1)
    command = [sys.executable, "-m", *starter(restarts), "evaluation.faults.survivor", *arguments]
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    lines: list[tuple[float, str]] = []
    held: list[tuple[int, int]] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        # It comes to an end when the launcher is killed, too, which takes all processes along.
        timer = threading.Timer(_LIMIT_S * (1 + len(faults)), process.kill)
        timer.start()
        for line in process.stdout:
            lines.append((time.monotonic(), line.rstrip()))
            if _STARTING.search(line):
                held.append(_held(process.pid))
        timer.cancel()
        code = process.wait()
    return _outcome(code, lines, folder, held)


def _outcome(
    code: int,
    lines: Sequence[tuple[float, str]],
    folder: Path,
    held: Sequence[tuple[int, int]],
) -> Outcome:
    losses = [
        (int(found[1]), found[2]) for _, line in lines if (found := _LOSS.match(line)) is not None
    ]
    seen = {int(found[1]): found[2] for _, line in lines if (found := _SEEN.match(line))}
    at = [n for n, (_, line) in enumerate(lines) if _FAULT.match(line)]

    def after(n: int, pattern: re.Pattern[str]) -> float | None:
        begin_s, _ = lines[n]
        times = (time_s for time_s, line in lines[n + 1 :] if pattern.search(line))
        found_s = next(times, None)
        return None if found_s is None else found_s - begin_s

    return Outcome(
        code=code,
        losses=tuple(losses),
        seen=seen,
        detect_s=tuple(after(n, _DETECTED) for n in at),
        end_s=tuple(after(n, _STARTING) for n in at),
        next_step_s=tuple(after(n, _LOSS) for n in at),
        leftovers=_processes_with(str(folder)),
        held=tuple(held),
        text="\n".join(line for _, line in lines),
    )


def _held(process: int) -> tuple[int, int]:
    """Return the bytes and the open files of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{process}/fd"))


def _processes_with(text: str) -> tuple[int, ...]:
    """Return the processes whose command lines have a text."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        number = int(path.parent.name)
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if number != os.getpid() and text in words:
            found.append(number)
    return tuple(found)
