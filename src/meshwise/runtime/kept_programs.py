"""Executables are kept on disk, so that the next start of a step does not compile them again.

JAX's persistent compilation cache does it, and decides what an executable follows from: program,
compile options, flags, devices, versions.  A user who gave JAX a folder has all programs of a step
in it.  Else they are in Meshwise's folder of this user and of this kind of processor, while a step
is compiled and first run; settings of JAX are not changed for anything else.  Of a job only process
0 writes (JAX 0.10.2), and programs that call functions of the host are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwise.jax_compat.compilers import damaged_program, keeps_programs, programs_kept
from meshwise.kernels.folder import compiled_for
from meshwise.system.bounded_folder import files, trim
from meshwise.system.own_folder import own_folder
from meshwise.system.user_cache import user_cache

_NAME = "programs-"
_MOST_BYTES = 2**30
_SUFFIX = "-cache"
# Its time says until when all files are whole.
_STAMP = "whole"


@contextmanager
def kept_programs() -> Iterator[None]:
    """Take what is compiled in the block from disk, and keep it there.

    Nothing is kept if JAX's compilation cache is off, or if this user has no cache folder of their
    own to write.
    """
    asked = keeps_programs()
    if asked == "nowhere":
        yield
        return
    folder = None if asked == "elsewhere" else program_folder()
    if asked == "elsewhere" or folder is None:
        with programs_kept(None):
            yield
        return
    _remove_damaged(folder)
    try:
        with programs_kept(folder):
            yield
    finally:
        with suppress(OSError):
            (folder / _STAMP).touch()
        trim(folder, _MOST_BYTES, (_SUFFIX,))


def program_folder() -> Path | None:
    """Return where executables for this kind of processor are; None if none can be written.

    XLA:CPU compiles for the processor that it runs on, and machines may share a home.
    """
    digest = hashlib.sha256(repr(compiled_for()).encode()).hexdigest()[:16]
    return own_folder((user_cache(),), _NAME + digest)


def _remove_damaged(folder: Path) -> None:
    """Remove what a process that was killed had written in part: JAX would never write it anew."""
    stamp = folder / _STAMP
    whole_until = stamp.stat().st_mtime if stamp.exists() else 0.0
    for _, _, path in files(folder, (_SUFFIX,)):
        with suppress(OSError):
            if path.stat().st_mtime >= whole_until and damaged_program(path.read_bytes()):
                path.unlink()
