"""What a job listens on is what `docs/security.md` says, and at these addresses only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hosts.listeners import Listening, listening_of
from meshwise.hosts.ports import LOOPBACK

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
NUM_HOSTS = 2
# What listens, as the document calls it, by what a process has done before; and how many sockets.
LISTENERS = {"joined": "Coordinator", "devices": "Gloo", "step": "Transfer servers", "put": "Put"}
COUNTS = {"Coordinator": 1, "Gloo": 1, "Transfer servers": 2, "Put": 2}


@pytest.mark.slow
def test_what_listens_is_what_the_document_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meshwise", "launch", "--hosts", str(NUM_HOSTS), "-m"]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), *filter(None, sys.path)])
    with (tmp_path / "printed").open("w+") as printed:
        launcher = subprocess.Popen(
            [*command, "hosts.listening", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        try:
            told = waited_for(tmp_path, launcher)
            if not told:
                printed.seek(0)
                raise AssertionError(printed.read()[-6000:])
            found = {pid: listening_of(pid) for pid in job_of(launcher.pid)}
        finally:
            (tmp_path / "seen").touch()
            try:
                launcher.wait(LIMIT_S)
            finally:
                launcher.kill()
    assert launcher.returncode == 0
    known: set[Listening] = set()
    for number, process in enumerate(told):
        known |= check_process(number, process)
        # No other process of the job listens: the launcher, and what guards its processes.
        assert found.pop(process["pid"]) == {Listening(*s) for s in all_of(process)}
    assert not set().union(*found.values()) - known
    names = documented()
    assert names == list(LISTENERS.values())


def check_process(number: int, process: dict[str, Any]) -> set[Listening]:
    """Check addresses and numbers; return what a child has open that was forked."""
    told = {what: [Listening(*each) for each in some] for what, some in process["listens"].items()}
    assert told.pop("start") == []
    for what, name in LISTENERS.items():
        count = COUNTS[name] if name != "Coordinator" or number == 0 else 0
        assert len(told[what]) == count, (name, told)
    # Gloo takes the address to which the name of the machine leads, and no other can be told to it.
    (gloo,) = told["devices"]
    assert gloo.address in addresses_of_own_name()
    others = [*told["joined"], *told["step"], *told["put"]]
    assert {each.address for each in others} == {LOOPBACK}
    if number == 0:
        assert f"{LOOPBACK}:{told['joined'][0].port}" == process["MESHWISE_COORDINATOR"]
    assert process["MESHWISE_TRANSFER_SOCKET"] in [f"{s.address}:{s.port}" for s in told["put"]]
    return {Listening(*each) for each in all_of(process)}


def all_of(process: dict[str, Any]) -> list[Any]:
    return [each for some in process["listens"].values() for each in some]


def addresses_of_own_name() -> set[str]:
    return {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}


def waited_for(folder: Path, launcher: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Return what each process says; nothing where the job ends before."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and launcher.poll() is None:
        files = [folder / f"{number}.json" for number in range(NUM_HOSTS)]
        if all(file.exists() for file in files):
            return [json.loads(file.read_text()) for file in files]
        time.sleep(0.05)
    return []


def job_of(launcher: int) -> list[int]:
    """Return the launcher and all processes that it started, and those that these started."""
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Behind the name, which may hold anything: state, parent, group.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)], groups[int(folder.name)] = int(fields[1]), int(fields[2])
    workers = {pid for pid, parent in parents.items() if parent == launcher}
    # The guard of a worker is no child of it, but of its group.
    return [launcher, *(pid for pid, group in groups.items() if group in workers)]


def documented() -> list[str]:
    """Return the first words of the rows of the document's table of a job's sockets."""
    lines = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| What listens"))
    names: list[str] = []
    for line in lines[start + 2 :]:
        if not line.startswith("| "):
            break
        names.append(line.split("|")[1].strip())
    return [name for name in names if name in LISTENERS.values()]
