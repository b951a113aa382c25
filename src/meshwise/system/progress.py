"""Progress of long planning: lines of the logger "meshwise", at level INFO.

A program shows them with `logging.basicConfig(level=logging.INFO)`; commands show them themselves.
Where nobody does, one line at level WARNING says how, which Python shows by default.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext

_LOGGER = logging.getLogger("meshwise")


def say(text: str) -> None:
    """Tell of progress in a line."""
    _LOGGER.info(text)


@contextmanager
def told_if_slow(what: str, patience_s: float = 10.0) -> Generator[None]:
    """Say once, while a block runs, that it takes long, and how its progress can be seen.

    Nothing is said where the progress is seen.

    Args:
        what: What the block does, as `planning step`.
        patience_s: Seconds after which it takes long.
    """
    if _LOGGER.isEnabledFor(logging.INFO):
        yield
        return
    text = (
        f"{what} has taken {patience_s:g} s so far; logging.basicConfig(level=logging.INFO) shows "
        "what it tries"
    )
    timer = threading.Timer(patience_s, _LOGGER.warning, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Lines(logging.Handler):
    """Shows lines after some patience; where it ends, the last line until then."""

    def __init__(self, show: Callable[[str], object], patience_s: float) -> None:
        super().__init__(logging.INFO)
        self.show, self.patience_s = show, patience_s
        self.start = time.monotonic()
        self._latest = ""
        self._timer = threading.Timer(patience_s, self._end_patience)
        self._timer.daemon = True
        self._timer.start()

    def emit(self, record: logging.LogRecord) -> None:
        spent_s = time.monotonic() - self.start
        line = f"{spent_s:7.1f} s  {record.getMessage()}"
        if spent_s >= self.patience_s or record.levelno > logging.INFO:
            self._latest = ""
            self.show(line)
        else:
            self._latest = line

    def _end_patience(self) -> None:
        with self.lock or nullcontext():
            line, self._latest = self._latest, ""
            if line:
                self.show(line)

    def close(self) -> None:
        self._timer.cancel()
        super().close()


@contextmanager
def shown(show: Callable[[str], object], patience_s: float = 5.0) -> Generator[None]:
    """Show lines of progress while a block runs, if it takes long.

    Args:
        show: Is told each line, which begins with the seconds since the beginning.
        patience_s: Seconds at the beginning in which nothing is shown; then the last line of them
            is, which says what is done now.
    """
    lines, level, propagate = _Lines(show, patience_s), _LOGGER.level, _LOGGER.propagate
    _LOGGER.addHandler(lines)
    _LOGGER.setLevel(logging.INFO)
    # Libraries that log set up the root logger, which would show each line again.
    _LOGGER.propagate = False
    try:
        yield
    finally:
        _LOGGER.removeHandler(lines)
        lines.close()
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagate
