"""Stands in for `srun` of Slurm: a task on each machine of a job, by `ssh`.

It sets the variables that JAX reads, ends all tasks where one fails if that is asked for, and
returns the highest exit code, which is 128 and a signal where that ended a task. The job is told
by `SLURM_JOB_ID`, and by `SLURM_JOB_NODELIST` with names between commas.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

KILL = "--kill-on-bad-exit="


def main(words: Sequence[str]) -> int:
    """Run a command in all tasks, and return the exit code."""
    names = os.environ["SLURM_JOB_NODELIST"].split(",")
    is_asked = os.environ.get("SLURM_KILL_BAD_EXIT") == "1"
    if words[0].startswith(KILL):
        is_asked, words = words[0] == f"{KILL}1", words[1:]
    command = shlex.join(words)
    shared = {"SLURM_STEP_NODELIST": ",".join(names), "SLURM_NTASKS": str(len(names))}
    tasks = [
        subprocess.Popen(
            ["ssh", name, command],
            env={**os.environ, **shared, "SLURM_PROCID": str(number), "SLURM_LOCALID": "0"},
            start_new_session=True,
        )
        for number, name in enumerate(names)
    ]
    while None in (codes := [task.poll() for task in tasks]):
        if is_asked and any(codes):
            _end([task for task, code in zip(tasks, codes, strict=True) if code is None])
        time.sleep(0.05)
    return max(code if code >= 0 else 128 - code for code in codes if code is not None)


def _end(tasks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End tasks as Slurm does; JAX swallows SIGTERM."""
    for number, wait_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0)):
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, number)
        time.sleep(wait_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
