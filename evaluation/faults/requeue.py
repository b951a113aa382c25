"""Two hosts of this machine, and a loop that stands for the queue of a cluster.

It starts a process of the job on each host, as Slurm does.  If one fails, it waits for the others,
kills those that stand still, and starts all again.  Its arguments are how often it may do so, the
share of packets that each link loses, the delay of one way between the hosts in seconds, and the
job.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from evaluation.faults.faults import CUT, CUT_S, PART, Fault
from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.job import start_on_hosts
from evaluation.hosts.testbed import Testbed
from meshwise.hosts.member import RESTARTS

NUM_HOSTS = 2
_RATE = "1gbit"
# How long the others may go on after the first process has failed.
_GRACE_S = 25.0
_LOOK_EVERY_S = 0.05


def main(max_restarts: str, loss: str, delay_s: str, *job: str) -> int:
    """Run a job to its end; return 0, or the exit code of a process that failed in the last run."""
    delay, code = float(delay_s), 0
    with Testbed(NUM_HOSTS, _RATE, delay, delay / 4, float(loss)) as testbed:
        for attempt in range(int(max_restarts) + 1):
            if attempt:
                _say(f"[launch] starting again (restart {attempt})")
            code = _run(testbed, job, attempt)
            if code == 0:
                break
            for host in range(NUM_HOSTS):
                testbed.mend(host)
    return code


def _run(testbed: Testbed, job: Sequence[str], attempt: int) -> int:
    """Run the job once."""
    processes = start_on_hosts(testbed, 1, job, {RESTARTS: str(attempt)})

    def pass_on(host: int) -> None:
        printed = processes[host].stdout
        assert printed is not None
        with printed:
            for line in printed:
                _say(f"[host {host}] {line.rstrip()}")
                if line.startswith("fault "):
                    _cut(testbed, Fault.parse(line.removeprefix("fault ").strip()))

    threads = [threading.Thread(target=pass_on, args=(n,)) for n in range(NUM_HOSTS)]
    for thread in threads:
        thread.start()
    _end(processes)
    for thread in threads:
        thread.join()
    codes = [process.wait() for process in processes]
    _say(f"[launch] exit codes {codes}")
    return next((code for code in codes if code), 0)


def _cut(testbed: Testbed, fault: Fault) -> None:
    """Cut the link of a host, for a while or until the job is started again."""
    if fault.what not in (CUT, PART):
        return
    testbed.cut(fault.process)

    def mend() -> None:
        with suppress(TestbedError):  # The hosts may be gone.
            testbed.mend(fault.process)

    if fault.what == CUT:
        threading.Timer(CUT_S, mend).start()


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all have ended; kill what still runs long after another one has failed."""
    deadline_s: float | None = None
    while any(process.poll() is None for process in processes):
        if deadline_s is None and any(process.poll() for process in processes):
            deadline_s = time.monotonic() + _GRACE_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            for process in processes:
                process.kill()
        time.sleep(_LOOK_EVERY_S)


def _say(text: str) -> None:
    # The reader may be gone.
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except TestbedError as error:
        sys.exit(str(error))
