"""A second process that compiles some kernels while this one compiles the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from meshwise.intra.solver.kept import has_all_kernels, kernel_folder
from meshwise.intra.solver.warm import compile_kernels, compile_reductions

# It ends when the pipe to its standard input is closed: however the process at the other end ended.
_SCRIPT = """
import os, sys, threading
def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
from meshwise.intra.solver.warm import compile_search
compile_search()
"""


@contextmanager
def kernels(announce: Callable[[str], None]) -> Generator[Callable[[], None], None, None]:
    """Start to compile what is not kept; the second process never lives longer than the block.

    Args:
        announce: Is told that kernels are compiled, if they are.

    Yields:
        What returns when all kernels are there.
    """
    if has_all_kernels():
        yield _nothing
        return
    # Without a folder this process could not take what another one compiled.
    process = _second_process() if kernel_folder() is not None and sys.executable else None

    def wait() -> None:
        announce("compiling the solver's kernels, once: less than a minute")
        compile_reductions()
        if process is not None:
            process.wait()
        compile_kernels()

    try:
        yield wait
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def _nothing() -> None:
    pass


def _second_process() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
    )
