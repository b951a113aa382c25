"""Python seconds to issue a step of a pipeline over two processes, against one process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwise.hosts.host_process import Stream
from meshwise.hosts.launch import JobRequest, launch

NUM_PROCESSES = 2
# Threads of XLA:CPU, the same in all processes.
_NUM_THREADS = "8"
_MODULE = "benchmarks.issued_steps"


def host_dispatch(quick: bool) -> dict[str, Any]:
    """Goal: the slower of two processes at most 1.3 times one process; their sum is told, too.

    In each round the same pipeline runs over two processes, in one process of a job, and in one
    process without `jax.distributed`, one after the other.  Seconds are those in which the thread
    works that issues the step; it waits for the devices in between.
    """
    num_rounds, num_steps = (1, 20) if quick else (3, 150)
    found: dict[str, Any] = {}
    with _threads_of_xla():
        for devices in (1,) if quick else (1, 2):
            rounds = [_one_round(devices, num_steps) for _ in range(num_rounds)]
            found[f"{devices} devices a stage"] = _summary(rounds)
    return found


def _one_round(devices: int, num_steps: int) -> dict[str, list[dict[str, Any]]]:
    """Return for each way to run the pipeline what its processes say."""
    both = devices * NUM_PROCESSES
    found = {
        "two processes": _job(NUM_PROCESSES, devices, num_steps),
        "one process of a job": _job(1, both, num_steps),
        "one process": [_alone(both, num_steps)],
    }
    programs = {
        (told["num_instructions"], *told["layers_of_stages"], *told["devices_of_stages"])
        for each in found.values()
        for told in each
    }
    if len(programs) > 1:
        raise RuntimeError(f"the pipelines are not the same: {programs}")
    return found


def _summary(rounds: list[dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return medians over rounds: seconds, and ratios to one process."""
    seconds = {
        way: [[told["issue_s"] for told in each[way]] for each in rounds] for way in rounds[0]
    }
    job = seconds["two processes"]
    found: dict[str, Any] = {
        "num_rounds": len(rounds),
        "num_instructions": rounds[0]["one process"][0]["num_instructions"],
        "layers_of_stages": rounds[0]["one process"][0]["layers_of_stages"],
        "issue_s": {
            way: [statistics.median(process) for process in zip(*each, strict=True)]
            for way, each in seconds.items()
        },
    }
    for way in ("one process of a job", "one process"):
        rival = [each[0] for each in seconds[way]]
        for name, of in (("sum", sum), ("slowest", max)):
            ratios = [of(mine) / theirs for mine, theirs in zip(job, rival, strict=True)]
            found[f"{name} of two processes to {way}"] = {
                "median": statistics.median(ratios),
                "all": ratios,
            }
    return found


@contextmanager
def _threads_of_xla() -> Iterator[None]:
    """Give all processes that are started inside as many threads."""
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = _NUM_THREADS
    try:
        yield
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def _job(num_processes: int, devices: int, num_steps: int) -> list[dict[str, Any]]:
    request = JobRequest(
        program=("-m", _MODULE, str(devices), str(num_steps)),
        num_hosts=num_processes,
        devices_per_host=devices,
    )
    lines: list[str] = []

    def write(number: int, stream: Stream, line: bytes) -> None:
        if stream == "stdout":
            lines.append(line.decode())
        else:
            sys.stderr.write(f"[host {number}] {line.decode(errors='replace')}\n")

    end = launch(request, write=write, report=lambda text: print(text, file=sys.stderr))
    if end.exit_code:
        raise RuntimeError(f"the job ended early: {end.reason}")
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return sorted(told, key=lambda each: each["process"])


def _alone(devices: int, num_steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", _MODULE, str(devices), str(num_steps), "alone"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])
