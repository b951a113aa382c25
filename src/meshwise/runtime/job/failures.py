"""What an error that ends a process says of its job."""

from __future__ import annotations

import jax

from meshwise.errors import TransportError
from meshwise.system.exit_codes import INTERRUPTED

_TEXT_CHARS = 500
_MOST_CAUSES = 20
# What in an error of XLA's says that it is of this process.
_OWN = ("RESOURCE_EXHAUSTED", "Out of memory", "INVALID_ARGUMENT")


def may_be_of_another(error: BaseException | None) -> bool:
    """Return whether an error may say that another process has died.

    Args:
        error: The error, with what it comes from.
    """
    for _ in range(_MOST_CAUSES):
        if isinstance(error, TransportError):
            return True
        if isinstance(error, jax.errors.JaxRuntimeError):
            return not any(word in str(error) for word in _OWN)
        if error is None:
            return False
        error = error.__cause__ or error.__context__
    return False


def failure_text(error: BaseException, process: int) -> str:
    """Return what others are told of a failure.

    Args:
        error: What ends the process.
        process: Its number.
    """
    if isinstance(error, KeyboardInterrupt):
        return f"process {process} was interrupted"
    if isinstance(error, SystemExit):
        return f"process {process} ended with exit code {exit_code_of(error)}"
    text = str(error).split("\n", 1)[0][:_TEXT_CHARS]
    return f"process {process} failed: {type(error).__name__}: {text}"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that Python gives.

    Args:
        error: What ends the process; a `KeyboardInterrupt` may have an `exit_code` of its own.
    """
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "exit_code", INTERRUPTED)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 1
