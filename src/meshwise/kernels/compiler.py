"""Mark functions for Numba, which compiles them once for all processes that have equal sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar, cast

import numba
import numpy as np
from numba.core import config as numba_config
from numba.extending import overload

from meshwise.kernels.folder import kernel_folder

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# What most kernels take to compile, and what Python spends on an element of an array, as long as
# nothing is known.
_COMPILED_IN_S, _ELEMENT_S = 1.0, 5e-6

# As arguments and first values of variables: for each literal Numba compiles what is called anew.
NONE = cast("int", np.int64(-1))
ONE = cast("int", np.int64(1))
FORWARD = cast("bool", np.bool_(True))
BACKWARD = cast("bool", np.bool_(False))

_COMPILE_ALL: ContextVar[bool] = ContextVar("_COMPILE_ALL", default=False)

# Numba reads the folder from a variable of its whole process.
_FOLDER_LOCK = threading.Lock()


class _Dispatcher(Protocol):
    """What Numba makes of a function."""

    compile: Callable[[object], object]

    def enable_caching(self) -> None: ...


class _Config(Protocol):
    """Numba's settings."""

    CACHE_DIR: str


@contextmanager
def every_kernel_compiled() -> Generator[None]:
    """Compile what is called inside, however small: kernels are made ahead of time like this."""
    token = _COMPILE_ALL.set(True)
    try:
        yield
    finally:
        _COMPILE_ALL.reset(token)


class _Interpreter:
    """What Python has spent on a kernel, and may yet spend."""

    def __init__(self, left_s: float) -> None:
        self.left_s, self.element_s = left_s, 0.0
        self.is_over = False

    def takes(self, arguments: tuple[object, ...], function: Callable[..., object]) -> bool:
        """Return whether Python shall run a call; once it shall not, it shall never again."""
        is_first = not self.element_s
        expected_s = _elements(arguments) * (_ELEMENT_S if is_first else self.element_s)
        self.is_over = (
            _COMPILE_ALL.get() or expected_s > self.left_s or (is_first and _is_kept(function))
        )
        return not self.is_over

    def note(self, arguments: tuple[object, ...], spent_s: float) -> None:
        """Note what a call took."""
        self.left_s -= spent_s
        self.element_s = max(self.element_s, spent_s / max(_elements(arguments), 1))


def _elements(argument: object) -> int:
    """Return how many elements the arrays in an argument have."""
    if isinstance(argument, tuple):
        return sum(_elements(part) for part in cast("tuple[object, ...]", argument))
    return argument.size if isinstance(argument, np.ndarray) else 0


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


def light_kernel(
    function: Callable[_Arguments, _Result], *, compiled_in_s: float = _COMPILED_IN_S
) -> Callable[_Arguments, _Result]:
    """Mark a kernel whose work grows about as its arguments do: small ones need no compiler.

    Python itself runs the function while that takes less than compiling it would, all calls of this
    process together; for more, machine code pays.  What was compiled before, here or by an earlier
    process, is used at once.  The first plan of a small step then compiles nothing.

    Args:
        function: The function; Numba infers its types.
        compiled_in_s: Seconds that compiling it takes, about.

    Returns:
        The function; kernels may call it too.
    """
    compiled = kernel(function)
    interpreter = _Interpreter(compiled_in_s)

    @wraps(function)
    def chosen(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        if interpreter.is_over or not interpreter.takes(arguments, function):
            return compiled(*arguments, **named)
        start = time.thread_time()
        with np.errstate(all="ignore"):  # machine code does not warn either
            result = function(*arguments, **named)
        interpreter.note(arguments, time.thread_time() - start)
        return result

    _register(chosen, function)
    return chosen


def part(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Mark a function that only kernels call: it is kept as a part of them.

    Args:
        function: The function; Numba infers its types.

    Returns:
        The function itself, which Numba compiles where a kernel that it compiles calls it.
    """
    _register(function, function)
    return function


def _register(name: Callable[..., object], function: Callable[..., object]) -> None:
    """Let Numba compile a function where a kernel calls what stands under a name."""
    options = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def implementation(*_: object) -> Callable[..., object]:
        return function

    overload(name, jit_options=options, strict=False)(implementation)  # pyright: ignore


def _is_kept(function: Callable[..., object]) -> bool:
    """Return whether machine code of a function is in the folder from an earlier process."""
    folder = kernel_folder()
    code = function.__code__
    name = f"{Path(code.co_filename).stem}.{code.co_qualname}-{code.co_firstlineno}.*.nbi"
    return folder is not None and any(folder.glob(f"*/{name}"))


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
