"""Compile kernels ahead of time: in this process, or beside it, so that it can be on time."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from meshwise.kernels.compiler import every_kernel_compiled
from meshwise.kernels.folder import has_all_kernels, kernel_folder, note_all_kernels
from meshwise.system.cores import usable_cores

# It ends when the pipe to its standard input is closed: however the process at the other end ended.
# `sys.stdin` has a lock, which a thread that waits there holds when Python ends: then it aborts.
_SCRIPT = """
import os, threading
def end_with_parent():
    while os.read(0, 1):
        pass
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
from meshwise.kernels.background import compile_part
compile_part("{module}", "{part}")
"""
_NOTICE = "compiling the solver, {often}: less than a minute"
_NO_FOLDER = "as no folder for its code can be written (XDG_CACHE_HOME), each time"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSet:
    """All kernels of a package.

    Attributes:
        package: The package's name, by which the folder knows whether the set is complete.
        module: Module with functions that need all of the kernels.
        parts: Names of these functions, without arguments; each may run in a process of its own.
    """

    package: str
    module: str
    parts: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Return whether every kernel is kept, so that none needs to be compiled."""
        return has_all_kernels(self.package)

    def compile(self) -> None:
        """Compile here what is not yet kept."""
        for part in self.parts:
            compile_part(self.module, part)
        note_all_kernels(self.package)


def compile_part(module: str, part: str) -> None:
    """Call a function of a module so that every kernel that it needs is compiled."""
    with every_kernel_compiled():
        getattr(importlib.import_module(module), part)()


class _Compilation:
    """Processes that compile, or a thread where there is no folder to keep kernels in."""

    def __init__(self, kernels: KernelSet, announce: Callable[[str], None]) -> None:
        self.kernels = kernels
        self.announce = announce
        # Without a folder this process could not take what others compiled.
        self.has_folder = kernel_folder() is not None and bool(sys.executable)
        self.processes = (
            [_process(kernels.module, part) for part in kernels.parts] if self.has_folder else []
        )
        self.thread: threading.Thread | None = None
        self.is_announced = False

    def wait(self, deadline: float) -> bool:
        """Wait until all kernels are there or time is over; return whether they are there."""
        if not self.is_announced:
            self.announce(_NOTICE.format(often="once" if self.has_folder else _NO_FOLDER))
            self.is_announced = True
        try:
            found = [p.wait(max(deadline - time.monotonic(), 0.0)) for p in self.processes]
        except subprocess.TimeoutExpired:
            return False
        if found and not any(found):
            note_all_kernels(self.kernels.package)
            return True
        return self._compiled_here(deadline)

    def _compiled_here(self, deadline: float) -> bool:
        """Compile in this process, in a thread that is left alone at the deadline."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.kernels.compile, daemon=True)
            self.thread.start()
        self.thread.join(max(deadline - time.monotonic(), 0.0))
        return not self.thread.is_alive()

    def end(self) -> None:
        """End what compiles elsewhere."""
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def compiling(
    kernels: KernelSet, announce: Callable[[str], None]
) -> Generator[Callable[[float], bool], None, None]:
    """Start to compile what is not kept; no other process lives longer than the block.

    Args:
        kernels: The kernels that are needed.
        announce: Function that is told that kernels are being compiled, if they are.

    Yields:
        A function that waits until all kernels are there, or a time of `time.monotonic` has passed;
        it returns whether they are there.
    """
    if kernels.is_complete:
        yield lambda _: True
        return
    compilation = _Compilation(kernels, announce)
    try:
        yield compilation.wait
    finally:
        compilation.end()


@contextmanager
def compiling_behind(kernels: KernelSet, patience_s: float = 3.0) -> Generator[None]:
    """Compile kernels in processes that nobody waits for; none lives longer than the block.

    A block that ends soon starts none: small problems need no kernels (`light_kernel`).
    What is called before it is there is compiled in this process too.

    Args:
        kernels: The kernels that will be needed late in the block.
        patience_s: Seconds after which they are started.
    """
    has_place = usable_cores() > 1 and bool(sys.executable) and kernel_folder() is not None
    if not has_place or kernels.is_complete:
        yield
        return
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        processes.extend(_process(kernels.module, part) for part in kernels.parts)

    patience = threading.Timer(patience_s, start)
    patience.start()
    try:
        yield
    finally:
        patience.cancel()
        patience.join()
        if processes and all(process.poll() == 0 for process in processes):
            note_all_kernels(kernels.package)
        for process in processes:
            process.kill()
            process.communicate()


def _process(module: str, part: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT.format(module=module, part=part)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
    )
