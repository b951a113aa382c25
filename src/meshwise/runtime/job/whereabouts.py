"""What a process of a job is at, and how long it has waited there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import jax

from meshwise.runtime.job.pending import is_there

# A step takes long where it takes so many times as long as any before.
_TIMES_LONGER = 3.0

# What a transport waits for, and for how many seconds; None where it waits for nothing.
Wait = Callable[[], tuple[str, float] | None]


class _Place(NamedTuple):
    """What a process is at, and since when; its text is made when it is asked for."""

    what: object
    since_s: float


class Whereabouts:
    """What each thread of a process is at, and what the process waits for behind their backs."""

    def __init__(self) -> None:
        """The process is outside of any step."""
        # For each thread that is at something.
        self._places: dict[int, _Place] = {}
        # The last step that was dispatched, and one of its results.
        self._flight: tuple[_Place, jax.Array] | None = None
        self._longest_s = 0.0
        self._waits: list[Wait] = []

    def at(self, what: object) -> None:
        """Note what this thread is at in a step.

        Args:
            what: Its `str` is the text, as "in step 3, instruction 5 of mesh 1"; None outside.
        """
        now_s = time.monotonic()
        before = self._places.pop(threading.get_ident(), None)
        if before is not None:
            self._longest_s = max(self._longest_s, now_s - before.since_s)
        if what is not None:
            self._places[threading.get_ident()] = _Place(what, now_s)

    def dispatched(self, what: str, results: Sequence[jax.Array]) -> None:
        """Note that a step was dispatched, which its devices have yet to do.

        Args:
            what: The step.
            results: Its results; the last one tells when it is done.
        """
        if results:
            self._flight = _Place(what, time.monotonic()), results[-1]

    @contextmanager
    def waiting(self, what: object) -> Generator[None]:
        """Note what this thread waits for, as long as a block runs.

        Args:
            what: As for `at`.
        """
        thread = threading.get_ident()
        before = self._places.get(thread)
        self._places[thread] = _Place(what, time.monotonic())
        try:
            yield
        finally:
            if before is None:
                self._places.pop(thread, None)
            else:
                self._places[thread] = before

    def watch(self, wait: Wait) -> None:
        """Ask also for what is waited for behind the calls of Python.

        Args:
            wait: Says what it is; it is kept.
        """
        self._waits.append(wait)

    def clear(self) -> None:
        """Forget all of it: the process is done."""
        self._places.clear()
        self._flight = None

    def text(self) -> str:
        """Return all of it as text; empty outside of steps and waits."""
        try:
            parts = [str(place.what) for place in list(self._places.values())]
            flight = self._in_flight()
            parts += [] if flight is None or parts else [f"in {flight.what}"]
            parts += [f"waiting for {found[0]}" for wait in self._waits if (found := wait())]
        except Exception as error:  # A text must not end the job.
            return f"somewhere ({type(error).__name__})"
        return ", ".join(parts)

    def _in_flight(self) -> _Place | None:
        """Return the last step, if its devices have not done it."""
        if self._flight is None:
            return None
        place, result = self._flight
        if not is_there(result):
            return place
        self._longest_s = max(self._longest_s, time.monotonic() - place.since_s)
        self._flight = None
        return None

    def waited_s(self) -> float:
        """Return how long this process has waited for others; 0 where steps take as long."""
        now_s = time.monotonic()
        flight = self._in_flight()
        times = [now_s - place.since_s for place in list(self._places.values())]
        times += [] if flight is None else [now_s - flight.since_s]
        times += [found[1] for wait in self._waits if (found := wait())]
        longest_s = max(times, default=0.0)
        return longest_s if longest_s > _TIMES_LONGER * self._longest_s else 0.0
