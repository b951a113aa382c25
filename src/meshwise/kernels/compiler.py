"""Mark functions for Numba, which compiles them once for all processes that have equal sources."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, cast

import numba
import numpy as np
from numba.core import config as numba_config

from meshwise.kernels.folder import kernel_folder

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# As arguments and first values of variables: for each literal Numba compiles what is called anew.
NONE = cast("int", np.int64(-1))
ONE = cast("int", np.int64(1))
FORWARD = cast("bool", np.bool_(True))
BACKWARD = cast("bool", np.bool_(False))

# Numba reads the folder from a variable of its whole process.
_FOLDER_LOCK = threading.Lock()


class _Dispatcher(Protocol):
    """What Numba makes of a function."""

    compile: Callable[[object], object]

    def enable_caching(self) -> None: ...


class _Config(Protocol):
    """Numba's settings."""

    CACHE_DIR: str


def kernel(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Mark a function that Python calls: its machine code is kept for later processes.

    The folder is looked for when the function is first called, not before: an import writes
    nothing.

    Args:
        function: The function; Numba infers its types.

    Returns:
        The function compiled; it may be called from other kernels too.
    """
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True)(function)  # pyright: ignore
    dispatcher = cast("_Dispatcher", compiled)
    compile_now = dispatcher.compile

    def compile_first(signature: object) -> object:
        """Give the function its folder; Numba looks there before it compiles."""
        _keep_in_folder(dispatcher)
        dispatcher.compile = compile_now
        return compile_now(signature)

    dispatcher.compile = compile_first
    return cast("Callable[_Arguments, _Result]", compiled)


def part(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Mark a function that only kernels call: it is kept as a part of them.

    Args:
        function: The function; Numba infers its types.

    Returns:
        The function compiled.
    """
    options = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = numba.njit(**options)(function)  # pyright: ignore
    return cast("Callable[_Arguments, _Result]", compiled)


def _keep_in_folder(compiled: _Dispatcher) -> None:
    config = cast("_Config", numba_config)
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
