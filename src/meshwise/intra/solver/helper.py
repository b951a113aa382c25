"""Other processes compile the kernels, so that this one can be on time without them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from meshwise.intra.solver.kept import has_all_kernels, kernel_folder, note_all_kernels
from meshwise.intra.solver.warm import compile_kernels

# It ends when the pipe to its standard input is closed: however the process at the other end ended.
_SCRIPT = """
import os, sys, threading
def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
from meshwise.intra.solver.warm import {part}
{part}()
"""
_PARTS = ("compile_reductions", "compile_search")
_NOTICE = "compiling the solver's kernels, {often}: less than a minute"
_NO_FOLDER = "as no folder for them can be written (XDG_CACHE_HOME), each time"


class _Compilation:
    """Processes that compile, or a thread where there is no folder to keep kernels in."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.announce = announce
        # Without a folder this process could not take what others compiled.
        self.has_folder = kernel_folder() is not None and bool(sys.executable)
        self.processes = [_process(part) for part in _PARTS] if self.has_folder else []
        self.thread: threading.Thread | None = None
        self.is_announced = False

    def wait(self, deadline: float) -> bool:
        """Wait until all kernels are there or time is over; whether they are there."""
        if not self.is_announced:
            self.announce(_NOTICE.format(often="once" if self.has_folder else _NO_FOLDER))
            self.is_announced = True
        try:
            found = [p.wait(max(deadline - time.monotonic(), 0.0)) for p in self.processes]
        except subprocess.TimeoutExpired:
            return False
        if found and not any(found):
            note_all_kernels()
            return True
        return self._compiled_here(deadline)

    def _compiled_here(self, deadline: float) -> bool:
        """Compile in this process, in a thread that is left alone at the deadline."""
        if self.thread is None:
            self.thread = threading.Thread(target=compile_kernels, daemon=True)
            self.thread.start()
        self.thread.join(max(deadline - time.monotonic(), 0.0))
        return not self.thread.is_alive()

    def end(self) -> None:
        """End what compiles elsewhere."""
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def kernels(announce: Callable[[str], None]) -> Generator[Callable[[float], bool], None, None]:
    """Start to compile what is not kept; no other process lives longer than the block.

    Args:
        announce: Is told that kernels are compiled, if they are.

    Yields:
        What waits until all kernels are there, or a deadline of `time.monotonic` has passed;
        whether they are.
    """
    if has_all_kernels():
        yield lambda _: True
        return
    compilation = _Compilation(announce)
    try:
        yield compilation.wait
    finally:
        compilation.end()


def _process(part: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT.format(part=part)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
    )
