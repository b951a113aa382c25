"""The folder in which compiled kernels are kept, and the removal of folders that nobody uses.

Numba notices a change in a function's own file only, not in what it calls, so that a kernel on
disk could be an old one.  Here the folder depends on the text of all sources with kernels, on where
they lie, since Numba uses no kernel of another installation, and on the machine that they were
compiled for.  What kernels take from other modules must stand in such a source too
(`tests/kernels/test_sources.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # pyright: ignore[reportMissingTypeStubs]
import numba
from numba.core import config as numba_config

from meshwise.system.own_folder import own_folder
from meshwise.system.user_cache import user_cache

_UNUSED_S = 30 * 24 * 3600.0
_NAME = "kernels-"
# The end of the name of an empty file that says that all kernels of a package are in the folder.
_COMPLETE = ".complete"
# What all sources with kernels contain, for they import it; the names of arrays alone do not count.
_MARK, _NAMES_ONLY = b"meshwise.kernels", b"from meshwise.kernels.arrays import"
_PACKAGE = Path(__file__).resolve().parents[1]
# Before any kernel was imported, for their modules import this one.
_START_NS = time.time_ns()


@cache
def kernel_folder() -> Path | None:
    """Find the folder for kernels, make it, and remove folders of other versions long unused.

    Returns:
        The folder; None if none can be written, or if a source has changed since it was imported:
        then what this process compiles is not what the text on disk says.
    """
    digest = hashlib.sha256(repr((_PACKAGE, compiled_for())).encode())
    for source in kernel_sources():
        try:
            status = source.stat()
            text = source.read_bytes()
        except OSError:
            return None
        if max(status.st_mtime_ns, status.st_ctime_ns) >= _START_NS:
            return None
        digest.update(text)
    # A name of its own: others may write where temporary files are.
    temporary = Path(tempfile.gettempdir()) / f"meshwise-{_user()}"
    folder = own_folder((user_cache(), temporary), f"{_NAME}{digest.hexdigest()[:16]}")
    if folder is not None:
        remove_unused(folder, time.time())
    return folder


def kernel_sources() -> list[Path]:
    """Return the sources of Meshwise that have kernels, in a fixed order."""
    return [
        source for source in sorted(_PACKAGE.rglob("*.py")) if _has_kernels(source.read_bytes())
    ]


def _has_kernels(text: bytes) -> bool:
    return _MARK in text.replace(_NAMES_ONLY, b"")


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def compiled_for() -> tuple[object, ...]:
    """Return what machine code depends on besides its source; machines may share a home."""
    config: Any = numba_config
    return (
        numba.__version__,
        sys.implementation.cache_tag,
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        config.CPU_NAME,
        config.CPU_FEATURES,
    )


def remove_unused(present: Path, now: float) -> None:
    """Note that a folder is in use, and remove those beside it that were not for 30 days.

    Args:
        present: The folder of this version.
        now: Seconds since the epoch.
    """
    try:
        os.utime(present, (now, now))
        others = [path for path in present.parent.glob(f"{_NAME}*") if path != present]
    except OSError:
        return
    for path in others:
        try:
            is_unused = now - path.stat().st_mtime > _UNUSED_S
        except OSError:
            # Another process was quicker.
            continue
        if is_unused:
            shutil.rmtree(path, ignore_errors=True)


def has_kernels() -> bool:
    """Return whether any kernel is kept from a process before this one."""
    folder = kernel_folder()
    return folder is not None and any(folder.iterdir())


def has_all_kernels(package: str) -> bool:
    """Return whether every kernel of a package is kept, so that none needs to be compiled."""
    folder = kernel_folder()
    return folder is not None and (folder / f"{package}{_COMPLETE}").exists()


def note_all_kernels(package: str) -> None:
    """Note that every kernel of a package is kept."""
    folder = kernel_folder()
    if folder is not None:
        try:
            (folder / f"{package}{_COMPLETE}").touch()
        except OSError:
            return
