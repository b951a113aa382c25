"""Mark functions for Numba, which compiles them once for all processes that have equal sources."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import config as numba_config

from meshwise.kernels.folder import kernel_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])

# As arguments and first values of variables: for each literal Numba compiles what is called anew.
NONE: Any = np.int64(-1)
ONE: Any = np.int64(1)
FORWARD: Any = np.bool_(True)
BACKWARD: Any = np.bool_(False)

# Numba reads the folder from a variable of its whole process.
_FOLDER_LOCK = threading.Lock()


def kernel(function: _Function) -> _Function:
    """Mark a function that Python calls: its machine code is kept for later processes.

    The folder is looked for when the function is first called, not before: an import writes
    nothing.

    Args:
        function: The function; Numba infers its types.

    Returns:
        The function compiled; it may be called from other kernels too.
    """
    # As a mapping, for its stubs do not know all of its options.
    options: Any = {"nogil": True, "no_cfunc_wrapper": True}
    compiled: Any = numba.njit(**options)(function)
    compile_now = compiled.compile

    def compile_first(signature: Any) -> Any:
        """Give the function its folder; Numba looks there before it compiles."""
        _keep_in_folder(compiled)
        compiled.compile = compile_now
        return compile_now(signature)

    compiled.compile = compile_first
    return compiled


def part(function: _Function) -> _Function:
    """Mark a function that only kernels call: it is kept as a part of them.

    Args:
        function: The function; Numba infers its types.

    Returns:
        The function compiled.
    """
    options: Any = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Any = numba.njit(**options)(function)
    return compiled


def _keep_in_folder(compiled: Any) -> None:
    config: Any = numba_config
    with _FOLDER_LOCK:
        folder = kernel_folder()
        if folder is None:
            # Numba would refuse to keep anything: compile each time.
            return
        before = config.CACHE_DIR
        config.CACHE_DIR = str(folder)
        try:
            compiled.enable_caching()
        finally:
            config.CACHE_DIR = before
