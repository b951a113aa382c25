"""What goes wrong in a process of a job, and where: hooks into Meshwise."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import meshwise.api.parallel_step as parallel_step
from meshwise.api.parallel_step import ParallelStep
from meshwise.runtime.pipeline.interpreter import PipelineStep
from meshwise.train.checkpoint import Checkpoints

# What is done to the process.
KILL, STOP, RAISE, SLOW, TERM, PAUSE = "kill", "stop", "raise", "slow", "term", "pause"
# What is done to the link of its host, by whoever reads what the process says: it is cut for
# `CUT_S`, or until the job is started again.
CUT, PART = "cut", "part"
# Where: before so many instructions, after so many steps, in so many calls of the others.
INSTRUCTION, STEP, INIT, PLAN, COMPILE, SAVE, RESTORE = (
    "instruction",
    "step",
    "init",
    "plan",
    "compile",
    "save",
    "restore",
)
PLACES: tuple[str, ...] = (INSTRUCTION, STEP, INIT, PLAN, COMPILE, SAVE, RESTORE)
SLOW_S, PAUSE_S, CUT_S = 3.0, 5.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong once.

    Attributes:
        process: The process.
        what: What happens.
        place: Where.
        number: At which time it comes there, from 1 on.
        attempt: In which start of the job.
    """

    process: int
    what: str
    place: str
    number: int
    attempt: int = 0

    def text(self) -> str:
        """Return the fault as an argument."""
        return f"{self.process},{self.what},{self.place},{self.number},{self.attempt}"

    @staticmethod
    def parse(text: str) -> Fault:
        """Read an argument."""
        process, what, place, number, attempt = text.split(",")
        return Fault(
            process=int(process),
            what=what,
            place=place,
            number=int(number),
            attempt=int(attempt),
        )


class Disturbance:
    """Counts how often this process comes to each place, and does what is asked there."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._counts = {place: itertools.count(1) for place in PLACES}
        self.seen: dict[str, int] = dict.fromkeys(PLACES, 0)

    def at(self, place: str) -> None:
        """Do what is asked at this place, at this time."""
        number = self.seen[place] = next(self._counts[place])
        for fault in self._faults:
            if (fault.place, fault.number) == (place, number):
                _say(f"fault {fault.text()}")
                _do(fault.what)


@contextmanager
def disturbed(faults: list[Fault], process: int, attempt: int) -> Generator[Disturbance]:
    """Let what is asked for go wrong in this process.

    Args:
        faults: Those of all processes.
        process: The number of this one.
        attempt: How often the job was started before.
    """
    own = [f for f in faults if (f.process, f.attempt) == (process, attempt)]
    found = Disturbance(own)
    wraps: list[tuple[Any, str, str]] = [
        (PipelineStep, "step", INSTRUCTION),
        (ParallelStep, "init", INIT),
        (ParallelStep, "_compiled", COMPILE),
        (parallel_step, "plan_in_job", PLAN),
        (Checkpoints, "save", SAVE),
        (Checkpoints, "restore", RESTORE),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in wraps]
    try:
        for where, name, place in wraps:
            setattr(where, name, _disturbed(getattr(where, name), place, found.at))
        yield found
    finally:
        for where, name, function in before:
            setattr(where, name, function)


def _disturbed(
    function: Callable[..., Any], place: str, at: Callable[[str], None]
) -> Callable[..., Any]:
    def disturbed_function(*args: Any, **kwargs: Any) -> Any:
        at(place)
        return function(*args, **kwargs)

    return disturbed_function


def _do(what: str) -> None:
    own = os.getpid()
    if what == KILL:
        os.kill(own, signal.SIGKILL)
    elif what == STOP:
        os.kill(own, signal.SIGSTOP)
    elif what == TERM:
        os.kill(own, signal.SIGTERM)
    elif what == SLOW:
        time.sleep(SLOW_S)
    elif what == PAUSE:
        # Another process wakes this one, and all its threads.
        if os.fork() == 0:
            time.sleep(PAUSE_S)
            os.kill(own, signal.SIGCONT)
            os._exit(0)
        os.kill(own, signal.SIGSTOP)
    elif what == RAISE:
        raise ValueError("what a user did wrong")
    elif what not in (CUT, PART):
        raise AssertionError(what)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
