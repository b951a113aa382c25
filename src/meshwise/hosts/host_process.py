"""A process that stands for a host: its lines of output, and its end with all that it started.

The process leads a group of its own and holds the reading end of a pipe, its *lifeline*. A guard in
the group (`worker`) kills the whole group when the writing end is closed: by `HostProcess` once the
process has ended, or by the system once the launcher has, however that ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

from meshwise.errors import LaunchError

Stream = Literal["stdout", "stderr"]
# Takes the number of the process, the stream, and a line without its end.
LineWriter = Callable[[int, Stream, bytes], None]

LIFELINE = "MESHWISE_LIFELINE"
# A line is cut where it is longer.
_MOST_LINE_BYTES = 2**16
# Whoever left the group may hold the output open for longer.
_DRAIN_S = 2.0


class HostProcess:
    """A process that stands for a host."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        write: LineWriter,
        ended: Callable[[int, int], None],
    ) -> None:
        """Start the process.

        Args:
            number: The number of the process in its job.
            command: The program and its arguments.
            environment: Its environment variables.
            write: Is called with each line, from threads.
            ended: Is called with the number and the exit code (negative for a signal), from a
                thread, after the last line.

        Raises:
            LaunchError: the process cannot be started.
        """
        self.number = number
        self._write = write
        self._ended = ended
        self._lock = threading.Lock()
        reading, self._lifeline = os.pipe()
        self._is_over = False
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, LIFELINE: str(reading)},
                pass_fds=(reading,),
                start_new_session=True,
            )
        except OSError as error:
            self._release()
            raise LaunchError(f"cannot start process {number}: {error.strerror}") from error
        finally:
            os.close(reading)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process and to all that it started; SIGUSR1 to itself only.

        Args:
            number: The signal.
        """
        with self._lock:
            # As long as the lifeline is open, the guard keeps the group, and its number, alive.
            if not self._is_over:
                # Those that it started, as readers of data, would die of SIGUSR1.
                send = os.kill if number == signal.SIGUSR1 else os.killpg
                with suppress(ProcessLookupError, PermissionError):
                    send(self._process.pid, number)

    def kill(self) -> None:
        """End the process and all that it started, and wait for the end."""
        self.send_signal(signal.SIGKILL)
        self._watcher.join()

    def _watch(self) -> None:
        """Pass the lines on, wait for the end, and tell it."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        readers = [
            threading.Thread(target=self._pass_lines, args=arguments, daemon=True)
            for arguments in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in readers:
            reader.start()
        code = self._process.wait()
        self._release()
        for reader in readers:
            reader.join(_DRAIN_S)
        self._ended(self.number, code)

    def _release(self) -> None:
        """Close the lifeline: the guard kills what is left of the group."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                os.close(self._lifeline)

    def _pass_lines(self, stream: Stream, pipe: IO[bytes]) -> None:
        while line := pipe.readline(_MOST_LINE_BYTES):
            # Of a progress bar, which goes back to the start of its line, the last state stays.
            self._write(self.number, stream, line.rstrip(b"\r\n").rpartition(b"\r")[2])
