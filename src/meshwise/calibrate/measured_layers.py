"""Measured times that are kept for the next time, one file for each program."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwise.calibrate.layer_times import Measure
from meshwise.calibrate.timed_program import Measurable
from meshwise.calibrate.workers import Workers
from meshwise.system.atomic_file import write_atomically
from meshwise.system.text_file import text_of
from meshwise.system.user_cache import user_cache

# Of a file, which holds one time and what it is of.
_MOST_BYTES = 2**20


@contextmanager
def measuring() -> Iterator[Measure]:
    """Yield what measures programs on the devices of this process, each program once."""
    with Workers() as workers:
        yield KeptTimes(workers, kept_folder())


def kept_folder() -> Path:
    """Where times are kept; it may not exist yet."""
    return user_cache() / "measured"


class KeptTimes:
    """Measures what is not known yet."""

    def __init__(self, measure: Measure, folder: Path) -> None:
        """Begin.

        Args:
            measure: Measures programs.
            folder: The folder of the times; where it cannot be written, nothing is kept.
        """
        self._measure, self._folder = measure, folder
        self._known: dict[str, float] = {}

    def __call__(self, programs: Sequence[Measurable]) -> list[float]:
        """Return seconds of programs; of equal ones once."""
        missing: dict[str, Measurable] = {}
        for program in programs:
            if program.key not in self._known and (found := self._read(program.key)) is not None:
                self._known[program.key] = found
            if program.key not in self._known:
                missing[program.key] = program
        if missing:
            for program, seconds in zip(
                missing.values(), self._measure(list(missing.values())), strict=True
            ):
                self._known[program.key] = seconds
                self._write(program, seconds)
        return [self._known[program.key] for program in programs]

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _read(self, key: str) -> float | None:
        """Return the time that is kept; None if there is none, or the file is none of ours."""
        with (
            suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError),
            self._path(key).open("rb") as file,
        ):
            seconds = float(json.loads(text_of(file, _MOST_BYTES))["seconds"])
            return seconds if math.isfinite(seconds) and seconds > 0 else None
        return None

    def _write(self, program: Measurable, seconds: float) -> None:
        said = {
            "seconds": seconds,
            "program": program.name,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(program.key), json.dumps(said) + "\n")
