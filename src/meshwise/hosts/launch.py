"""Starts the processes of a job on this machine, and ends them together.

Each process stands for a host with virtual CPU devices. `jax.distributed.initialize()` without
arguments finds the job, as under Slurm or Open MPI. Whatever ends the job (a process that fails, a
signal, output that nobody reads any more), every process gets a signal first, and is killed where
it has not ended after some seconds: once `jax.distributed` is up, JAX's notifier of preemptions
swallows SIGTERM.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from meshwise.errors import LaunchError
from meshwise.hosts.host_name import check_own_name
from meshwise.hosts.host_process import HostProcess, LineWriter, Stream
from meshwise.hosts.member import RESTARTS, START, JobMember, TransferAddresses
from meshwise.hosts.ports import LOOPBACK, check_free, free_ports
from meshwise.system.cause_file import CAUSE_FILE, first_cause
from meshwise.system.cpu_threads import thread_variables
from meshwise.system.exit_codes import START_AGAIN
from meshwise.units import plural

_WORKER = (sys.executable, "-P", "-m", "meshwise.hosts.worker")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_WRONG_USE = 2
# A job that ends sooner may never begin; it is started again after 1, 2, 4, ... seconds.
_QUICK_S = 5.0
_LOOK_S = 1.0
_MOST_WAIT_S = 30
# What would lead JAX to another job than this one.
_FOREIGN = ("JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is to be started.

    Attributes:
        program: What follows `python` on a command line: a script or `-m` and a module, and their
            arguments.
        num_hosts: The number of processes.
        devices_per_host: Virtual CPU devices of each.
        port: Port of the coordinator; None for a free one.
        grace_s: Seconds in which processes may end by themselves before they are killed.
        max_restarts: How often the job is started again after a failure.
    """

    program: tuple[str, ...]
    num_hosts: int
    devices_per_host: int = 1
    port: int | None = None
    grace_s: float = 5.0
    max_restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended.

    Attributes:
        exit_code: 0 if all processes ended so; else the code of the process that failed first, or
            128 and the number of the signal that ended it or the launcher.
        reason: Why it ended early; empty if it did not.
        exit_codes: The exit code of each process; negative for a signal.
        is_stopped: Whether a signal to the launcher ended it, or that nobody reads its output.
    """

    exit_code: int
    reason: str
    exit_codes: tuple[int, ...]
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """A process ended by itself."""

    number: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """All processes are to end.

    Attributes:
        reason: Why.
        by_signal: The signal to the launcher that says so; None where nobody reads the output.
    """

    reason: str
    by_signal: int | None


_Events = queue.SimpleQueue[_End | _Stop]


def launch(request: JobRequest, *, write: LineWriter, report: Callable[[str], None]) -> JobEnd:
    """Run a job to its end, again after a failure if that is asked; no process is left then.

    It must be called from the main thread, whose signals it takes in the meantime.  A job that was
    stopped, and one that says that it was used in a wrong way, is not started again.

    Args:
        request: What is to be started.
        write: Takes each line of a process; an `OSError` of it ends the job.
        report: Takes what the launcher has to say.

    Returns:
        How the job ended.

    Raises:
        LaunchError: the job cannot be started.
    """
    check_own_name()
    quick, start = 0, uuid.uuid4().hex
    for restarts in range(request.max_restarts + 1):
        begin_s = time.monotonic()
        variables = {RESTARTS: str(restarts), START: start}
        end = _launch_once(request, variables, write, report)
        is_final = end.is_stopped or end.exit_code in (0, _WRONG_USE)
        if is_final or restarts == request.max_restarts:
            return end
        quick = quick + 1 if time.monotonic() - begin_s < _QUICK_S else 0
        wait_s = min(2 ** (quick - 1), _MOST_WAIT_S) if quick else 0
        later = f" in {wait_s} s" if wait_s else ""
        report(f"starting again{later} (restart {restarts + 1} of at most {request.max_restarts})")
        time.sleep(wait_s)
    raise AssertionError("a job is started at least once")


def _launch_once(
    request: JobRequest,
    variables: Mapping[str, str],
    write: LineWriter,
    report: Callable[[str], None],
) -> JobEnd:
    if request.port is not None:
        check_free(request.port)
    environments = job_environments(request, os.environ)
    events: _Events = queue.SimpleQueue()
    processes: list[HostProcess] = []

    def write_or_stop(number: int, stream: Stream, line: bytes) -> None:
        try:
            write(number, stream, line)
        except OSError as error:
            events.put(_Stop(reason=f"output: {error.strerror}", by_signal=None))

    with _signals_as_events(events), TemporaryDirectory() as folder:
        causes = [Path(folder, str(number)) for number in range(request.num_hosts)]
        try:
            for number, environment in enumerate(environments):
                told = {CAUSE_FILE: str(causes[number]), **variables}
                processes.append(
                    HostProcess(
                        number,
                        [*_WORKER, *request.program],
                        environment | told,
                        write=write_or_stop,
                        ended=lambda number, code: events.put(_End(number=number, exit_code=code)),
                    )
                )
            return _Watch(processes, events, request.grace_s, report, causes).run()
        finally:
            for process in processes:
                process.kill()


def job_environments(
    request: JobRequest, environment: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """Return the environment variables of each process.

    Args:
        request: The job.
        environment: The variables of the launcher.

    Raises:
        LaunchError: there are no free ports.
    """
    free, *transfer_ports = free_ports(1 + request.num_hosts)
    coordinator = f"{LOOPBACK}:{request.port or free}"
    own = {name: value for name, value in environment.items() if name not in _FOREIGN}
    shared = thread_variables(request.devices_per_host) | own
    shared |= {
        "JAX_COORDINATOR_BIND_ADDRESS": coordinator,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(request.devices_per_host),
    }
    return tuple(
        shared
        | TransferAddresses(
            socket=f"{LOOPBACK}:{transfer_port}", transport=f"{LOOPBACK}:0"
        ).variables()
        | JobMember(
            coordinator=coordinator, num_processes=request.num_hosts, process_id=number
        ).variables()
        for number, transfer_port in enumerate(transfer_ports)
    )


@contextmanager
def _signals_as_events(events: _Events) -> Generator[None, None, None]:
    """Turn signals into events; a signal that is ignored, as under `nohup`, stays so."""
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError("a job is launched from the main thread, which gets the signals")
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def on_signal(number: int, _: FrameType | None) -> None:
        events.put(_Stop(reason=f"got {signal.Signals(number).name}", by_signal=number))

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watch:
    """Waits until all processes have ended, and sees to it that they do once one has failed."""

    def __init__(
        self,
        processes: list[HostProcess],
        events: _Events,
        grace_s: float,
        report: Callable[[str], None],
        causes: Sequence[Path],
    ) -> None:
        self._running = {process.number: process for process in processes}
        self._events = events
        self._grace_s = grace_s
        self._report = report
        self._causes = causes
        self._is_stopped = False
        self._exit_codes = dict.fromkeys(self._running, 0)
        self._exit_code = 0
        self._reason = ""
        # When processes that have not ended are killed; None before the job is to end.
        self._deadline: float | None = None

    def run(self) -> JobEnd:
        """Return how the job ended, once it has."""
        while self._running:
            left_s = self._seconds_left()
            try:
                # A signal that another thread gets is seen when this one next runs.
                event = self._events.get(timeout=min(left_s, _LOOK_S))
            except queue.Empty:
                if left_s <= _LOOK_S:
                    self._kill(f"not ended after {self._grace_s:g} s")
                continue
            if isinstance(event, _End):
                del self._running[event.number]
                self._exit_codes[event.number] = event.exit_code
                if event.exit_code and not self._reason:
                    reason = f"host {event.number} {end_text(event.exit_code)}"
                    self._stop(reason, signal.SIGTERM, _as_shells(event.exit_code))
            elif not self._reason:
                number = event.by_signal or signal.SIGTERM
                self._is_stopped = True
                self._stop(event.reason, number, 128 + (event.by_signal or signal.SIGPIPE))
            elif event.by_signal is not None:
                # The second signal is meant.
                self._kill(event.reason)
        codes = tuple(self._exit_codes.values())
        if self._is_stopped and START_AGAIN in codes:
            self._exit_code = START_AGAIN  # They saved what they had, as a scheduler asks.
        cause = first_cause(self._causes)
        if cause is not None:
            self._reason = f"{self._reason}: {cause.text}" if self._reason else cause.text
            self._report(f"cause: {cause.text}")
            if not self._is_stopped and 0 <= cause.process < len(codes):
                # One below 0 may be of a signal of the launcher.
                self._exit_code = max(codes[cause.process], 0) or self._exit_code
        return JobEnd(
            exit_code=self._exit_code,
            reason=self._reason,
            exit_codes=codes,
            is_stopped=self._is_stopped,
        )

    def _seconds_left(self) -> float:
        return math.inf if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _stop(self, reason: str, number: int, exit_code: int) -> None:
        """Ask all processes to end, by a signal."""
        self._reason, self._exit_code = reason, exit_code
        others = f"; ending {_hosts_text(list(self._running))}" if self._running else ""
        self._report(f"{reason}{others}")
        self._deadline = time.monotonic() + self._grace_s
        for process in self._running.values():
            process.send_signal(number)

    def _kill(self, why: str) -> None:
        self._report(f"{why}; killing {_hosts_text(list(self._running))}")
        self._deadline = None
        for process in self._running.values():
            process.send_signal(signal.SIGKILL)


def end_text(exit_code: int) -> str:
    """Return how a process ended, as text.

    Args:
        exit_code: Its exit code; negative for a signal.
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _as_shells(exit_code: int) -> int:
    return exit_code if exit_code >= 0 else 128 - exit_code


def _hosts_text(numbers: list[int]) -> str:
    return f"{plural(len(numbers), 'host')} {', '.join(map(str, numbers))}"
