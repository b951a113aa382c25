"""HiGHS in a process of its own, which can be ended at any moment.

In this process nothing could end it: the root of a large program looks at no limit and no flag for
a long time.  Programs and outcomes go through pipes; the process ends when the one to its standard
input is closed, however the process at the other end ended.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Self

from meshwise.errors import SolverError
from meshwise.intra.solver.program import Outcome, Program, solve_program

_SCRIPT = "from meshwise.intra.solver.beside import serve; serve()"
_LOOK_EVERY_S = 0.01
# Of the time left, what HiGHS does not get: its outcome must come back before the deadline.
_WAY_BACK = 0.02
_LENGTH = struct.Struct("<q")


class Beside:
    """The process; started with the first program, and none is left when the block ends."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def solve(
        self, program: Program, *, deadline: float, seed: int, must_stop: Callable[[], bool]
    ) -> Outcome | None:
        """Solve a program; None if time was over or it was told to stop.

        Args:
            program: The program.
            deadline: Of `time.monotonic`, in seconds.
            seed: Of HiGHS.
            must_stop: Whether to end, asked often.

        Raises:
            SolverError: HiGHS failed, or the process could not start or ended by itself.
        """
        try:
            self.process = self.process or _started()
        except OSError as error:
            raise SolverError(f"no process for HiGHS could be started: {error}") from error
        found: list[Outcome | str] = []
        exchange = threading.Thread(
            target=_exchange, args=(self.process, (program, deadline, seed), found), daemon=True
        )
        exchange.start()
        while exchange.is_alive() and time.monotonic() < deadline and not must_stop():
            exchange.join(_LOOK_EVERY_S)
        if exchange.is_alive():
            self.process.kill()
            exchange.join()
            return None
        if not found:
            raise SolverError("the process of HiGHS ended by itself")
        if isinstance(found[0], str):
            raise SolverError(found[0])
        return found[0]

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.process is None:
            return
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()
        self.process = None


def _started() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        # Ctrl-C is for the process that asks.
        start_new_session=True,
    )


def _exchange(
    process: subprocess.Popen[bytes],
    request: tuple[Program, float, int],
    found: list[Outcome | str],
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    # Nothing comes where the process was ended, by whomever.
    with suppress(OSError, EOFError):
        _send(process.stdin, request)
        found.append(_received(process.stdout))


def _send(pipe: IO[bytes], value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _received(pipe: IO[bytes]) -> Outcome | str:
    return pickle.loads(_message(pipe))


def _message(pipe: IO[bytes]) -> bytes:
    """The next one; what comes here was sent by the process at the other end of an own pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def serve() -> None:
    """Solve what comes from the standard input, one program after the other, until it is closed."""
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with suppress(OSError, EOFError):
            while True:
                requests.put(_message(sys.stdin.buffer))
        # In the middle of what HiGHS does: it holds no lock of Python.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        program, deadline, seed = pickle.loads(requests.get())
        # The clock is the same one in all processes.
        left = (1 - _WAY_BACK) * max(deadline - time.monotonic(), 0.0)
        answer: Outcome | str
        try:
            answer = solve_program(program, time_limit_s=left, seed=seed, must_stop=lambda: False)
        except SolverError as error:
            answer = str(error)
        _send(sys.stdout.buffer, answer)
