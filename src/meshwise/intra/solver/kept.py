"""The folder in which compiled kernels are kept, and the removal of folders that nobody uses.

Numba notices a change in a function's own file only, not in what it calls, so that a kept kernel
could be an old one; here the folder depends on all sources of the solver, and on what it was
compiled for: it holds every kernel that is needed, or is not yet complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # pyright: ignore[reportMissingTypeStubs]
import numba
from numba.core import config as numba_config

_UNUSED_S = 30 * 24 * 3600.0
_NAME = "kernels-"
# An empty file that says that all kernels are in the folder.
_COMPLETE = "complete"


@cache
def kernel_folder() -> Path | None:
    """Where kernels are kept; None if no folder can be written."""
    digest = hashlib.sha256(repr(_compiled_for()).encode())
    package = Path(__file__).parents[2]
    for source in sorted((*Path(__file__).parent.glob("*.py"), *package.glob("*/*_kernels.py"))):
        digest.update(source.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # A name of its own: others may write where temporary files are.
    temporary = Path(tempfile.gettempdir()) / f"meshwise-{_user()}"
    folder = own_folder((home / "meshwise", temporary), f"{_NAME}{digest.hexdigest()[:16]}")
    if folder is not None:
        remove_unused(folder, time.time())
    return folder


def own_folder(parents: Iterable[Path], name: str) -> Path | None:
    """The first folder that can be made and written, and that nobody else can write.

    What is kept there is code that will be run.
    """
    for parent in parents:
        folder = parent / name
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if os.access(folder, os.W_OK) and _is_ours(parent) and _is_ours(folder):
                return folder
        except OSError:
            continue
    return None


def _is_ours(folder: Path) -> bool:
    found = folder.stat()
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _compiled_for() -> tuple[object, ...]:
    """What else Numba tells kernels apart by; a home may be shared by different machines."""
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


def has_all_kernels() -> bool:
    """Whether every kernel is kept, so that none needs to be compiled."""
    folder = kernel_folder()
    return folder is not None and (folder / _COMPLETE).exists()


def note_all_kernels() -> None:
    """Note that every kernel is kept."""
    folder = kernel_folder()
    if folder is not None:
        try:
            (folder / _COMPLETE).touch()
        except OSError:
            return
