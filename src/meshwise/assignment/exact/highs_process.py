"""HiGHS in a process of its own, which can be ended at any moment.

In this process nothing could end it: the root of a large program looks at no limit and no flag for
a long time.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Self

from meshwise.assignment.exact.highs import HighsEffort, HighsProgram, Outcome, solve_program
from meshwise.errors import SolverError
from meshwise.system.child_process import ChildProcess, requests

_SCRIPT = "from meshwise.assignment.exact.highs_process import serve; serve()"
_LOOK_EVERY_S = 0.01
# Of the time left, what HiGHS does not get: its outcome must come back before the deadline.
_WAY_BACK = 0.02


class Beside:
    """The process; started with the first program, and none is left when the block ends."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Return the process, once there is one."""
        return None if self._child is None else self._child.process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def solve(
        self, program: HighsProgram, effort: HighsEffort, must_stop: Callable[[], bool]
    ) -> Outcome | None:
        """Solve a program in the process.

        Args:
            program: The program.
            effort: What ends HiGHS.
            must_stop: Function that says whether to end; it is asked often.

        Returns:
            What HiGHS found; None if time was over or it was told to stop.

        Raises:
            SolverError: HiGHS failed, or the process could not start or ended by itself.
        """
        try:
            child = self._child = self._child or ChildProcess(_SCRIPT)
        except OSError as error:
            raise SolverError(f"no process for HiGHS could be started: {error}") from error
        found: list[Outcome | str] = []

        def exchange() -> None:
            # Nothing comes where the process was ended, by whomever.
            with suppress(OSError, EOFError):
                child.send((program, effort))
                found.append(child.receive())

        thread = threading.Thread(target=exchange, daemon=True)
        thread.start()
        while thread.is_alive() and not (time.monotonic() >= effort.deadline or must_stop()):
            thread.join(_LOOK_EVERY_S)
        if thread.is_alive():
            child.kill()
            thread.join()
            return None
        if not found:
            raise SolverError("the process of HiGHS ended by itself")
        if isinstance(found[0], str):
            raise SolverError(found[0])
        return found[0]

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._child is not None:
            self._child.end()
            self._child = None


def serve() -> None:
    """Solve what comes from the standard input, one program after the other, until it is closed."""
    for (program, effort), answer in requests():
        if math.isfinite(effort.deadline):
            # The clock is the same one in all processes.
            early = effort.deadline - _WAY_BACK * effort.seconds_left
            effort = replace(effort, deadline=early)
        try:
            answer(solve_program(program, effort, lambda: False))
        except SolverError as error:
            answer(str(error))
