"""Roll calls of processes that are threads here, and of two real ones under Slurm's variables."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from meshwise.cli import main
from meshwise.doctor.finding import Finding, is_sound
from meshwise.hosts import card as card_module
from meshwise.hosts import roll_call as roll_call_module
from meshwise.hosts.member import JobMember
from meshwise.hosts.messages import Channel, StrangerError
from meshwise.hosts.ports import free_ports
from meshwise.hosts.roll_call import roll_call

doctor_module = importlib.import_module("meshwise.cli.doctor")
LIMIT_S = 60.0


def members(*numbers: int, count: int = 0) -> list[JobMember]:
    coordinator = f"127.0.0.1:{free_ports(1)[0]}"
    return [
        JobMember(coordinator=coordinator, num_processes=count or len(numbers), process_id=number)
        for number in numbers
    ]


def call_all(
    job: Sequence[JobMember], *, limit_s: float = LIMIT_S
) -> tuple[list[dict[str, Finding]], list[int]]:
    """What each process found, and the indices of those that are to tell it."""
    tellers: list[int] = []

    def call(index: int) -> dict[str, Finding]:
        found = roll_call(job[index], tell=lambda _: tellers.append(index), limit_s=limit_s)
        return {finding.what: finding for finding in found}

    with ThreadPoolExecutor(len(job)) as pool:
        return list(pool.map(call, range(len(job)))), tellers


def test_all_processes_find_the_same_and_process_0_tells_it() -> None:
    found, tellers = call_all(members(0, 1, 2))
    assert found[0] == found[1] == found[2]
    assert is_sound(list(found[0].values())), found[0]
    assert found[0]["processes"].found == "3 of 3, machines: 1"
    assert "to process 0" in found[0]["links inside a host"].found
    assert tellers == [0]


@pytest.mark.parametrize("numbers", [(0, 1, 1), (0, 0, 1)])
def test_a_number_twice_is_found_by_all(numbers: tuple[int, ...]) -> None:
    found, tellers = call_all(members(*numbers))
    twice = next(number for number in numbers if numbers.count(number) == 2)
    for each in found:
        assert f"2 processes say that they are process {twice}" in each["processes"].found
        assert "process 2 did not come" in each["processes"].found
    assert len(tellers) == 1


def test_a_process_that_does_not_come_is_waited_for_until_the_limit() -> None:
    found, _ = call_all(members(0, 2, count=4), limit_s=0.5)
    assert found[0] == found[1]
    assert found[0]["processes"].found == "process 1, 3 did not come within 0.5 s"
    assert found[0]["ports"].status == "ok"


def test_without_process_0_the_others_say_so() -> None:
    found, tellers = call_all(members(1, 2, count=3), limit_s=0.3)
    assert [set(each) for each in found] == [{"coordinator"}] * 2
    assert "nobody listens on port" in found[0]["coordinator"].found
    assert sorted(tellers) == [0, 1]


def test_versions_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()
    monkeypatch.setattr(card_module, "_version", lambda package: f"0.{next(count)}")
    found, _ = call_all(members(0, 1))
    assert found[0]["versions"].status == found[1]["versions"].status == "broken"


def test_a_port_in_use_by_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call_module, "_GREETING_S", 0.2)
    job = members(0, 1)
    with socket.create_server(job[0].address):
        found, tellers = call_all(job, limit_s=0.5)
    assert "in use by another program" in found[0]["coordinator"].found
    assert "is no process of `meshwise doctor --hosts`" in found[1]["coordinator"].found
    assert sorted(tellers) == [0, 1]


def test_strangers_are_sent_away() -> None:
    job = members(0, 1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(roll_call, job[0], tell=lambda _: None, limit_s=LIMIT_S)
        while True:
            try:
                connection = socket.create_connection(job[0].address)
                break
            except ConnectionRefusedError:
                continue
        with connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            second = pool.submit(roll_call, job[1], tell=lambda _: None, limit_s=LIMIT_S)
            assert is_sound(first.result())
            assert first.result() == second.result()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (socket.gaierror(-2, "Name or service not known"), "does not resolve here: Name or"),
        (TimeoutError("timed out"), "for 0.1 s: timed out"),
        (OSError(101, "Network is unreachable"), "for 0.1 s: Network is unreachable"),
    ],
)
def test_why_process_0_is_not_reached(
    error: OSError, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    member = JobMember(coordinator="node7:1234", num_processes=2, process_id=1)
    (found,) = roll_call(member, tell=lambda _: None, limit_s=0.1)
    assert text in found.found
    assert found.remedy


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH_9.6\r\n", b"meshwise\x02\0\0\0[]"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as stranger,
        Channel(server.accept()[0]) as channel,
    ):
        stranger.sendall(data)
        with pytest.raises(StrangerError):
            channel.receive(limit_s=LIMIT_S)
        with pytest.raises(TimeoutError):
            channel.receive(limit_s=0.0)


# -- the command ---------------------------------------------------------------------------------


def test_the_command_takes_the_place_of_a_process_from_its_options() -> None:
    (member,) = members(0)
    options = ["--coordinator", member.coordinator, "--processes", "1", "--process-id", "0"]
    shown = CliRunner().invoke(main, ["doctor", "--hosts", "--json", *options])
    assert shown.exit_code == 0, shown.output
    data = json.loads(shown.stdout)
    assert data["ok"] is True
    assert [each["what"] for each in data["findings"]][:2] == ["processes", "versions"]
    shown = CliRunner().invoke(main, ["doctor", "--hosts", "--limit", "0.1", *options[:-1], "1"])
    assert shown.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--processes", "2"], "--processes go with --hosts"),
        (["--hosts", "--processes", "2"], "--process-id go together"),
        (
            ["--hosts", "--coordinator", "x", "--processes", "2", "--process-id", "0"],
            "'x' is not HOST:PORT",
        ),
        (["--hosts"], "this process is in no job"),
    ],
)
def test_what_the_command_refuses(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "detected_member", lambda: None)
    shown = CliRunner().invoke(main, ["doctor", *arguments])
    assert shown.exit_code == 2
    assert text in shown.output


def test_under_slurm_the_job_is_found_as_jax_finds_it() -> None:
    # JAX takes the port from the number of the job.
    first = 2**16 - 2**12
    job_id = next(
        number for number in range(os.getpid() % 4096, 2**13) if is_free(first + number % 4096)
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "meshwise", "doctor", "--hosts", "--json"],
            env={
                **os.environ,
                "SLURM_JOB_ID": str(job_id),
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_NTASKS": "2",
                "SLURM_PROCID": str(number),
                "SLURM_LOCALID": str(number),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    alarms = [threading.Timer(LIMIT_S, process.kill) for process in processes]
    for alarm in alarms:
        alarm.start()
    said = [process.communicate()[0] for process in processes]
    for alarm in alarms:
        alarm.cancel()
    assert json.loads(said[0])["ok"] is True
    assert said[1] == ""
    assert [process.returncode for process in processes] == [0, 0]


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
