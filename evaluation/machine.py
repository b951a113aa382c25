"""The machine on which something is measured, in a sentence."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

_LOOP_NUMBERS = 1_000_000
_LOOP_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine at a time.

    Attributes:
        date: The day, as "2026-11-26".
        loop_s: Seconds of a fixed loop of Python, which tell how fast one thread is just now.
        load: How many processes want to run, the mean of a minute.
    """

    date: str
    loop_s: float
    load: float

    def __str__(self) -> str:
        """Return a sentence without its full stop."""
        return (
            f"{self.date}, {os.cpu_count()} cores ({platform.machine()}), Linux "
            f"{platform.release()}, JAX {version('jax')}, load {self.load:.1f}; the sum of the "
            f"squares of a million numbers in Python takes {1e3 * self.loop_s:.0f} ms"
        )


def this_machine() -> Machine:
    """Return this machine, now."""
    return Machine(
        date=datetime.now(UTC).date().isoformat(),
        loop_s=min(_loop_s() for _ in range(_LOOP_TRIES)),
        load=os.getloadavg()[0],
    )


def _loop_s() -> float:
    start_s = time.perf_counter()
    total = 0
    for number in range(_LOOP_NUMBERS):
        total += number * number
    return time.perf_counter() - start_s
