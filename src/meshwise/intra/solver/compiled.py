"""Compilation of kernels, kept on disk for as long as no source of a kernel changes.

Numba notices a change in a function's own file only, not in what it calls, so that a kept kernel
could be an old one; here the place where they are kept depends on all sources of this folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import config as numba_config

_Function = TypeVar("_Function", bound=Callable[..., Any])

# As arguments and first values of variables: for each literal Numba compiles what is called anew.
NONE: Any = np.int64(-1)
ONE: Any = np.int64(1)
FORWARD: Any = np.bool_(True)
BACKWARD: Any = np.bool_(False)


@cache
def _folder() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for parent in (Path(home), Path(tempfile.gettempdir())):
        folder = parent / "meshwise" / f"kernels-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return str(folder)
    return ""


def kernel(function: _Function) -> _Function:
    """Compile a function when it is first called, or take what an earlier process compiled."""
    config: Any = numba_config
    before = config.CACHE_DIR
    config.CACHE_DIR = _folder()
    try:
        # Without a writable folder Numba would refuse to keep anything: compile each time.
        compiled: Any = numba.njit(cache=bool(config.CACHE_DIR), nogil=True, no_cfunc_wrapper=True)(
            function
        )
        return compiled
    finally:
        config.CACHE_DIR = before


def part(function: _Function) -> _Function:
    """As `kernel`, for what only kernels call: it is kept as a part of them."""
    options: Any = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Any = numba.njit(**options)(function)
    return compiled
