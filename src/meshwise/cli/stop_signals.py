"""Signals that end a run: the first one asks for it, the second one ends the process."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from meshwise.cli.train_view import TrainView
from meshwise.system.exit_codes import INTERRUPTED, START_AGAIN

# Of a user, of a scheduler that takes the machine away, and of one that says so beforehand.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class _EndedError(KeyboardInterrupt):
    """A signal while there is nothing to save."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


class StopFlag:
    """Set by the first signal."""

    def __init__(self) -> None:
        self._signal: int | None = None

    def set(self, number: int) -> None:
        """Note a signal by its number."""
        self._signal = number

    def is_set(self) -> bool:
        """Return whether a signal has come."""
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of a run that ends early; another process may have got the signal."""
        return INTERRUPTED if self._signal == signal.SIGINT else START_AGAIN


@contextmanager
def signals_set(flag: StopFlag, view: TrainView) -> Generator[None]:
    """Let the first signal (Ctrl-C; SIGTERM and SIGUSR1 of schedulers) set a flag.

    The second one ends the process at once.  So does the first while the plan is still being made.
    """
    before = {number: signal.getsignal(number) for number in _STOPS}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        flag.set(number)
        if not view.is_ready:
            raise _EndedError(flag.exit_code)  # There is nothing to save yet.
        view.note("stopping after this step; the state will be saved (again to stop at once)")
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in _STOPS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
