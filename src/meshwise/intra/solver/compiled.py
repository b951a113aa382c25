"""Compilation of kernels, kept on disk for as long as no source of the solver changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import config as numba_config

from meshwise.intra.solver.kept import kernel_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])

# As arguments and first values of variables: for each literal Numba compiles what is called anew.
NONE: Any = np.int64(-1)
ONE: Any = np.int64(1)
FORWARD: Any = np.bool_(True)
BACKWARD: Any = np.bool_(False)


def kernel(function: _Function) -> _Function:
    """Compile a function when it is first called, or take what an earlier process compiled."""
    config: Any = numba_config
    before = config.CACHE_DIR
    folder = kernel_folder()
    config.CACHE_DIR = str(folder or "")
    try:
        # Without a writable folder Numba would refuse to keep anything: compile each time.  As a
        # mapping, for its stubs do not know all of its options.
        options: Any = {"cache": folder is not None, "nogil": True, "no_cfunc_wrapper": True}
        compiled: Any = numba.njit(**options)(function)
        return compiled
    finally:
        config.CACHE_DIR = before


def part(function: _Function) -> _Function:
    """As `kernel`, for what only kernels call: it is kept as a part of them."""
    options: Any = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Any = numba.njit(**options)(function)
    return compiled
