"""Hosts on one machine: built, used, and gone afterwards, however the block ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.leftovers import clean_leftovers, namespaces
from evaluation.hosts.obstacle import obstacle
from evaluation.hosts.owner import is_abandoned, prefix
from evaluation.hosts.stream import plain_stream
from evaluation.hosts.testbed import Testbed

ROOT = Path(__file__).resolve().parents[3]
REASON = obstacle()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))
# A process with two hosts and something that runs on one of them, which nobody waits for.
OWNER = """
import sys, time
from evaluation.hosts.testbed import Testbed
with Testbed(hosts=2) as testbed:
    sleeper = testbed.start(1, ["sleep", "1000"])
    print(sleeper.pid, testbed.namespace(0), testbed.namespace(1), flush=True)
    time.sleep(1000)
"""
# Sends 1,000 datagrams, or counts what comes.
DATAGRAMS = """
import socket, sys, time
address, what = sys.argv[1:]
channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if what == "send":
    for _ in range(1000):
        channel.sendto(b"x", (address, 9000))
        time.sleep(0.001)
else:
    channel.bind((address, 9000))
    print("listens", flush=True)
    channel.settimeout(20)
    count = 0
    try:
        while channel.recv(1):
            count += 1
            channel.settimeout(2)
    except TimeoutError:
        print(count)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def own_names() -> list[str]:
    mine = prefix(0).removesuffix("0-")
    return [name for name in namespaces() if name.startswith(mine)]


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], int, list[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        pid, *names = process.stdout.readline().split()
        yield process, int(pid), names
        process.kill()
    clean_leftovers()


@needs_hosts
def test_a_stream_crosses_the_link_and_nothing_is_left() -> None:
    with Testbed(hosts=2, rate="800mbit") as testbed:
        received, _ = testbed.traffic(1)
        assert plain_stream(testbed, 0, 1, 1 << 20) > 0
        assert testbed.traffic(1)[0] - received > 1 << 20
        hosts = testbed.run(1, ["cat", "/etc/hosts"]).splitlines()
        assert f"{testbed.address(1)} {os.uname().nodename}" in hosts
        sleeper = testbed.start(0, ["sh", "-c", "sleep 1000 & sleep 1000"])
        assert len(own_names()) == 3
    assert own_names() == []
    assert sleeper.returncode == -signal.SIGKILL


@needs_hosts
def test_nothing_is_left_after_an_error() -> None:
    started: list[subprocess.Popen[str]] = []

    def body() -> None:
        with Testbed(hosts=1) as testbed:
            started.append(testbed.start(0, ["sleep", "1000"]))
            raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"):
        body()
    assert own_names() == []
    # It was killed, or found its host gone before it began.
    assert started[0].returncode not in (None, 0)


@needs_hosts
def test_two_testbeds_stand_side_by_side() -> None:
    with Testbed(hosts=1) as first, Testbed(hosts=1) as second:
        assert first.namespace(0) != second.namespace(0)
        assert clean_leftovers() == []
        assert second.run(0, ["echo", "there"]) == "there\n"
    assert own_names() == []


@needs_hosts
def test_a_program_that_fails_or_stays_is_an_error() -> None:
    with Testbed(hosts=1) as testbed:
        with pytest.raises(TestbedError, match=r"on host 0 ended with 3:\nwrong"):
            testbed.run(0, ["sh", "-c", "echo wrong >&2; exit 3"])
        with pytest.raises(TestbedError, match=r"longer than 0\.1 s"):
            testbed.run(0, ["sleep", "1000"], timeout_s=0.1)
        with pytest.raises(TestbedError, match="hosts 0 to 0 are there, not 1"):
            testbed.run(1, ["true"])


@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(
    owner: tuple[subprocess.Popen[str], int, list[str]], number: signal.Signals
) -> None:
    process, pid, names = owner
    assert set(names) <= set(namespaces())
    process.send_signal(number)
    process.wait(timeout=20)
    assert not is_running(pid)
    assert not set(names) & set(namespaces())


@needs_hosts
def test_programs_end_with_a_killed_process_and_the_next_testbed_removes_its_hosts(
    owner: tuple[subprocess.Popen[str], int, list[str]],
) -> None:
    process, pid, names = owner
    # It is bound to its parent before it becomes what runs on the host.
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(pid))
    assert all(map(is_abandoned, names))
    with Testbed(hosts=1):
        assert not set(names) & set(namespaces())


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize("rate", ["200mbit", "400mbit", "1gbit"])
def test_a_stream_runs_at_the_rate_of_the_link(rate: str) -> None:
    """Small and large transfers, within 15 %; the best of three, for the machine has others."""
    with Testbed(hosts=2, rate=rate) as testbed:
        for num_bytes in (1 << 18, 1 << 20, 1 << 24):
            found = max(plain_stream(testbed, 0, 1, num_bytes) for _ in range(3))
            assert found == pytest.approx(testbed.links_bytes_per_s[0], rel=0.15)


@needs_hosts
@pytest.mark.slow
def test_a_delay_is_added_to_each_way() -> None:
    with Testbed(hosts=2, delay_s=0.04) as testbed:
        started_s = time.monotonic()
        plain_stream(testbed, 0, 1, 1)
        # A handshake, an empty transfer, one of a byte: three round trips.
        assert time.monotonic() - started_s > 3 * 0.08


@needs_hosts
@pytest.mark.slow
def test_links_lose_packets() -> None:
    with Testbed(hosts=2, loss=0.2) as testbed:
        command = [sys.executable, "-c", DATAGRAMS, testbed.address(0)]
        with testbed.start(0, [*command, "receive"], None, subprocess.PIPE) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "listens\n"
            testbed.run(1, [*command, "send"])
            printed, _ = receiver.communicate(timeout=30)
    # Each crosses two links: 64 % of 1,000 arrive.
    assert 560 < int(printed) < 720


def test_a_name_tells_whether_its_owner_lives() -> None:
    mine = prefix(7)
    assert not is_abandoned(f"{mine}host0")
    pid, ticks, serial = mine.removeprefix("meshwise-").removesuffix("-").split("-")
    assert is_abandoned(f"meshwise-{pid}-{int(ticks) + 1}-{serial}-switch")
    assert not is_abandoned("meshwise")
    assert not is_abandoned("docker-1-2-3-host0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": 0}, "1 to 250 hosts, not 0"),
        ({"rate": "fast"}, "as 400mbit, 1gbit or 64kbit, not 'fast'"),
        ({"rate": "0mbit"}, "not '0mbit'"),
        ({"hosts": 2, "rate": ["1gbit"]}, "2 hosts need as many rates, not 1"),
        ({"jitter_s": 0.1}, r"a jitter of 0\.1 s does not go with a delay of 0\.0 s"),
    ],
)
def test_values_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TestbedError, match=message):
        Testbed(**arguments)  # type: ignore[arg-type]


def test_the_reason_of_a_skip_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert obstacle() == "a testbed of hosts needs root, to make network namespaces"
