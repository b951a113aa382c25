"""`meshwise launch`: lines, exit codes, and that no process is left, however the job ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from meshwise.cli import main
from meshwise.errors import LaunchError
from meshwise.hosts import host_name
from meshwise.hosts.launch import JobRequest, end_text, job_environments, launch
from meshwise.hosts.member import JobMember, TransferAddresses
from meshwise.hosts.ports import check_free, free_ports

COMMAND = (sys.executable, "-m", "meshwise", "launch")
# A program that hangs is killed; nothing here takes so long.
LIMIT_S = 60.0
HEAD = "import os, signal, subprocess, sys, time\nme = int(os.environ['MESHWISE_PROCESS_ID'])\n"
# A child that would outlive the script, with its path in the list of processes.
CHILD = (
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', os.path.abspath("
    "sys.argv[0])])\n"
)
WAIT = "print('ready', flush=True)\ntime.sleep(600)\n"


def script(folder: Path, body: str) -> str:
    path = folder / "script.py"
    path.write_text(HEAD + body)
    return str(path)


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@contextmanager
def started(path: str, *arguments: str, num_ready: int = 2) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose processes have printed that they are ready."""
    command = [*COMMAND, *arguments, path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    alarm = threading.Timer(LIMIT_S, process.kill)
    alarm.start()
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(num_ready)]
        assert sorted(lines) == [f"[host {number}] ready\n" for number in range(num_ready)]
        yield process
    finally:
        alarm.cancel()
        process.kill()
        process.communicate()


def processes_of(path: str) -> list[int]:
    """The processes that have the script in their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and path.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def assert_none_left(path: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (left := processes_of(path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


# -- what runs -----------------------------------------------------------------------------------


def test_each_line_has_the_number_of_its_process(tmp_path: Path) -> None:
    body = (
        "print(sys.argv[1:], sys.path[0] == os.path.dirname(__file__), 'jax' in sys.modules)\n"
        "print('half a line', end='', file=sys.stderr)\n"
    )
    done = run("--hosts", "3", script(tmp_path, body), "--lr", "-m")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[host {number}] ['--lr', '-m'] True False" for number in range(3)
    ]
    assert sorted(done.stderr.splitlines()) == [
        f"[host {number}] half a line" for number in (0, 1, 2)
    ]


def test_a_module_runs_and_of_a_progress_bar_the_last_state_is_shown(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys\nprint('10 %\\r20 %\\r\\n' + sys.argv[1])\n")
    done = subprocess.run(
        [*COMMAND, "--hosts", "1", "-m", "job", "--steps"],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.stdout == "[host 0] 20 %\n[host 0] --steps\n", done.stderr


def test_a_process_that_leaves_children_ends_with_them(tmp_path: Path) -> None:
    path = script(tmp_path, CHILD)
    assert run("--hosts", "2", path).returncode == 0
    assert_none_left(path)


# -- ends ----------------------------------------------------------------------------------------


def test_one_that_fails_ends_all(tmp_path: Path) -> None:
    # As JAX's notifier of preemptions does, these swallow SIGTERM.
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "open(sys.argv[0] + str(me), 'w')\n"
        "while me == 1 and not all(os.path.exists(sys.argv[0] + each) for each in '02'):\n"
        "    time.sleep(0.01)\n"
        "if me == 1: sys.exit(3)\n" + CHILD + WAIT
    )
    path = script(tmp_path, body)
    done = run("--hosts", "3", "--grace", "0.3", path)
    assert done.returncode == 3
    assert "[launch] host 1 ended with exit code 3; ending hosts 0, 2" in done.stderr
    assert "not ended after 0.3 s; killing hosts 0, 2" in done.stderr
    assert_none_left(path)


def test_a_signal_that_ends_a_process_is_told_as_json(tmp_path: Path) -> None:
    body = "if me == 0: os.kill(os.getpid(), signal.SIGKILL)\n" + WAIT
    done = run("--hosts", "2", "--json", script(tmp_path, body))
    assert done.returncode == 128 + signal.SIGKILL
    told = json.loads(done.stdout)
    assert told["exit_code"] == 137
    assert told["reason"] == "host 0 was ended by SIGKILL"
    assert [host["exit_code"] for host in told["hosts"]] == [-9, -15]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all(tmp_path: Path, number: signal.Signals) -> None:
    # Ctrl-C lets a script clean up.
    body = (
        CHILD
        + "try:\n    print('ready')\n    time.sleep(600)\n"
        + "finally:\n    open(sys.argv[0] + str(me), 'w')\n"
    )
    path = script(tmp_path, body)
    with started(path, "--hosts", "2") as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert f"got {number.name}; ending hosts 0, 1" in errors
    assert_none_left(path)
    has_cleaned = [Path(f"{path}{me}").exists() for me in (0, 1)]
    assert has_cleaned == [number == signal.SIGINT] * 2


def test_a_job_is_started_again_so_often_at_most(tmp_path: Path) -> None:
    body = "n = int(os.environ['MESHWISE_RESTARTS'])\nprint(n)\nsys.exit(3 if n < 2 else 0)\n"
    path = script(tmp_path, body)
    done = run("--hosts", "1", "--max-restarts", "2", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[host 0] {n}" for n in range(3)]
    assert "[launch] starting again in 2 s (restart 2 of at most 2)" in done.stderr
    done = run("--hosts", "1", "--max-restarts", "1", path)
    assert done.returncode == 3
    assert done.stdout.splitlines() == [f"[host 0] {n}" for n in range(2)]


def test_wrong_use_and_an_end_that_was_asked_for_start_nothing_again(tmp_path: Path) -> None:
    done = run("--hosts", "1", "--max-restarts", "3", script(tmp_path, "sys.exit(2)\n"))
    assert done.returncode == 2
    assert "starting again" not in done.stderr
    with started(script(tmp_path, WAIT), "--hosts", "2", "--max-restarts", "3") as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "starting again" not in errors


def test_the_exit_code_is_that_of_the_process_that_is_the_cause(tmp_path: Path) -> None:
    body = (
        'text = \'{"process": 1, "text": "wrong options"}\'\n'
        "open(os.environ['MESHWISE_CAUSE_FILE'], 'w').write(text)\n"
        "time.sleep(1.5 + me)\n"
        "sys.exit(2 if me else 75)\n"
    )
    path = script(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + body)
    done = run("--hosts", "2", "--max-restarts", "2", path)
    assert done.returncode == 2, done.stderr
    assert "starting again" not in done.stderr


def test_after_sigusr1_the_launcher_still_takes_all_along(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + WAIT
    path = script(tmp_path, body)
    with started(path, "--hosts", "2", "--grace", "60") as process:
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        process.kill()
        process.wait(LIMIT_S)
        assert_none_left(path)


def test_processes_that_saved_what_they_had_at_a_signal_ask_to_be_started_again(
    tmp_path: Path,
) -> None:
    saves = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
    with started(script(tmp_path, saves + WAIT), "--hosts", "2") as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75


def test_the_first_cause_that_processes_write_is_told(tmp_path: Path) -> None:
    body = (
        "time.sleep(0.5 * me)\n"
        'text = \'{"process": 0, "text": "cause %d"}\' % me\n'
        "open(os.environ['MESHWISE_CAUSE_FILE'], 'w').write(text)\n"
        "time.sleep(2 - me)\n"
        "sys.exit(75)\n"
    )
    done = run("--hosts", "2", "--json", script(tmp_path, body))
    assert done.returncode == 75
    assert "[launch] cause: cause 0" in done.stderr
    assert json.loads(done.stdout)["reason"].endswith("exit code 75: cause 0")


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, CHILD + WAIT)
    with started(path, "--hosts", "2") as process:
        assert len(processes_of(path)) >= 4
        process.kill()
    assert_none_left(path)


def test_output_that_nobody_reads_ends_all(tmp_path: Path) -> None:
    path = script(tmp_path, "print('ready')\nwhile True: print('more')\n")
    with started(path, "--hosts", "1", num_ready=1) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE
    assert_none_left(path)


# -- checks before the start ---------------------------------------------------------------------


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} is in use; leave --port out"):
            check_free(port)
        arguments = ["launch", "--hosts", "2", "--port", str(port), script(tmp_path, "")]
        shown = CliRunner().invoke(main, arguments)
        assert shown.exit_code == 1
        assert "leave --port out to take a free one" in shown.output
    check_free(port)


def test_a_program_that_is_not_there_is_refused() -> None:
    shown = CliRunner().invoke(main, ["launch", "--hosts", "2", "not_there.py"])
    assert shown.exit_code == 2
    assert "there is no file not_there.py" in shown.output
    assert CliRunner().invoke(main, ["launch", "--hosts", "0", "x.py"]).exit_code == 2
    assert "--hosts" in CliRunner().invoke(main, ["launch", "x.py"]).output


@pytest.mark.parametrize(
    ("addresses", "text"),
    [((), "does not resolve"), (("192.0.2.1",), "resolves to 192.0.2.1, not to this machine")],
)
def test_a_machine_that_does_not_know_its_name_is_refused(
    addresses: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_name, "addresses_of", lambda name: addresses)
    with pytest.raises(LaunchError, match=text):
        launch(
            JobRequest(program=("x.py",), num_hosts=1), write=lambda *_: None, report=lambda _: None
        )


def test_signals_go_to_the_main_thread() -> None:
    failures: list[str] = []

    def start() -> None:
        try:
            launch(
                JobRequest(program=("x.py",), num_hosts=1),
                write=lambda *_: None,
                report=lambda _: None,
            )
        except LaunchError as error:
            failures.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert failures == ["a job is launched from the main thread, which gets the signals"]


# -- what processes are told ---------------------------------------------------------------------


def test_each_process_is_told_its_place() -> None:
    request = JobRequest(program=("x.py",), num_hosts=3, devices_per_host=2)
    others = {"JAX_COORDINATOR_ADDRESS": "elsewhere:1", "HOME": "/home"}
    environments = job_environments(request, others)
    members = [JobMember.from_variables(environment) for environment in environments]
    assert [member and member.process_id for member in members] == [0, 1, 2]
    assert {member and (member.coordinator, member.num_processes) for member in members} == {
        (environments[0]["JAX_COORDINATOR_BIND_ADDRESS"], 3)
    }
    assert all("JAX_COORDINATOR_ADDRESS" not in each for each in environments)
    assert {(each["JAX_NUM_CPU_DEVICES"], each["HOME"]) for each in environments} == {
        ("2", "/home")
    }
    assert all(int(each["NPROC"]) >= 4 for each in environments)
    transfers = [TransferAddresses.from_variables(each) for each in environments]
    assert len({transfer and transfer.socket for transfer in transfers}) == 3
    assert JobMember.from_variables({}) is None
    assert TransferAddresses.from_variables({}) is None


@pytest.mark.parametrize(
    ("coordinator", "address"),
    [("host:1", ("host", 1)), ("[::1]:22", ("::1", 22)), ("host", None), (":1", None)],
)
def test_a_coordinator_is_host_and_port(coordinator: str, address: tuple[str, int] | None) -> None:
    member = JobMember(coordinator=coordinator, num_processes=1, process_id=0)
    if address is None:
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            _ = member.address
    else:
        assert member.address == address


def test_texts_of_ends() -> None:
    assert len(set(free_ports(20))) == 20
    assert end_text(0) == "ended with exit code 0"
    assert end_text(-9) == "was ended by SIGKILL"
    assert end_text(-63) == "was ended by signal 63"


# -- JAX -----------------------------------------------------------------------------------------


def test_jax_finds_the_job_by_itself(tmp_path: Path) -> None:
    body = """
os.environ["JAX_ENABLE_X64"] = "1"  # It still counts: nobody has imported JAX.
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
jax.distributed.initialize()
first, last = jax.devices()[0], jax.devices()[-1]
split = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
array = jax.make_array_from_callback((4,), split, lambda at: np.arange(4.0)[at])
total = jax.jit(jnp.sum)(array)
print(f"{jax.process_index()} {jax.process_count()} {len(jax.devices())} {total}")
mine = [jnp.arange(3.0)] if me == 0 else []
here = jax.make_array_from_single_device_arrays(
    (3,), SingleDeviceSharding(first), mine, dtype=jnp.float64
)
there = jax.device_put(here, SingleDeviceSharding(last))
if me == 0: jax.block_until_ready(jax.jit(jnp.sum)(array))  # The transfer needs a thread, too.
print([shard.data.tolist() for shard in there.addressable_shards])
if me == 1: jax.block_until_ready(jax.jit(jnp.sum)(array))
"""
    # Around it is a job of Slurm's, which JAX would take by itself.
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "node[1-8]",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "5",
    }
    arguments = ("--hosts", "2", "--devices-per-host", "2", script(tmp_path, body))
    done = run(*arguments, **slurm)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "Gloo" not in line]
    assert {"[host 0] []", "[host 1] [[0.0, 1.0, 2.0]]"} <= set(lines)
    for number in (0, 1):
        assert f"[host {number}] {number} 2 4 6.0" in lines
