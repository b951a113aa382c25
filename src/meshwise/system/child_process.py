"""A Python process that answers requests through pipes, and ends with the one that asks.

It ends when the pipe to its standard input is closed, however the process at the other end ended.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, Self

# A mark and the length of what follows.
_HEAD = struct.Struct("<8sq")
_MARK = b"meshwise"
# Of what a process printed, at most so many bytes from its end are shown.
_LAST_BYTES = 2000


class ChildProcess:
    """A Python process that answers requests; it has ended when the block ends."""

    def __init__(self, script: str) -> None:
        """Start the process.

        Args:
            script: Python text that answers what `requests` gives.

        Raises:
            OSError: the process cannot be started.
        """
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        # The working directory comes last: its `queue.py` is not imported.
        path = os.pathsep.join(map(os.path.abspath, sorted(sys.path, key=_is_working_directory)))
        self.process = subprocess.Popen(
            # -P: what lies in the working directory is imported only where it is here.
            [sys.executable, "-P", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=os.environ | {"PYTHONPATH": path},
            # Ctrl-C is for the process that asks.
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        """Return the process itself, which has already started."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self.end()

    def send(self, value: object) -> None:
        """Send a request.

        Args:
            value: The request; it must be possible to pickle it.

        Raises:
            OSError: the process has ended.
            PicklingError: the value cannot be pickled; nothing was sent.
        """
        assert self.process.stdin is not None
        _send(self.process.stdin, value)

    def receive(self) -> Any:
        """Wait for the next answer.

        Returns:
            The answer.

        Raises:
            EOFError: the process has ended.
            OSError: the process has ended.
        """
        assert self.process.stdout is not None
        return pickle.loads(_message(self.process.stdout))

    @property
    def has_answered(self) -> bool:
        """Return whether an answer, or the end of the process, can be received without waiting.

        Answers that were received before must be all of the requests but one.
        """
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0.0)[0])

    def last_printed(self) -> str:
        """Return the end of what the process printed, as the reason for which it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1.0)
        file = self._printed.fileno()
        # Both processes share one position in the file: `pread` does not move it.
        first = max(os.fstat(file).st_size - _LAST_BYTES, 0)
        return os.pread(file, _LAST_BYTES, first).decode(errors="replace").strip()

    def kill(self) -> None:
        """End the process while another thread may wait for its answer."""
        self.process.kill()

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()
        self._printed.close()


def requests() -> Iterator[tuple[Any, Callable[[object], None]]]:
    """Yield what is asked of this process, one request after the other.

    The process ends where nobody asks any more.

    Yields:
        The request, and a function that sends its answer.
    """
    # What others print must not come between answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with suppress(OSError, EOFError):
            while True:
                waiting.put(_message(sys.stdin.buffer))
        # In the middle of whatever is done: nobody waits for it.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield pickle.loads(waiting.get()), partial(_send, answers)


def _is_working_directory(folder: str) -> bool:
    return folder in ("", os.curdir)


def _send(pipe: IO[bytes], value: object) -> None:
    try:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (AttributeError, TypeError, RecursionError) as error:
        # What pickle says of local classes, locks and deep structures.
        raise pickle.PicklingError(str(error)) from error
    pipe.write(_HEAD.pack(_MARK, len(data)))
    pipe.write(data)
    pipe.flush()


def _message(pipe: IO[bytes]) -> bytes:
    """Return the next message; only the process at the other end of this pipe can have sent it."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    mark, length = _HEAD.unpack(head)
    if mark != _MARK:
        # Something else was printed; where the next message begins nobody knows.
        raise EOFError
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data
