"""Which faults are tried: a kill at every instruction of a step and beside it, and drawn ones."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from dataclasses import dataclass

from evaluation.faults.faults import (
    COMPILE,
    CUT,
    INIT,
    INSTRUCTION,
    KILL,
    PART,
    PAUSE,
    PLAN,
    RAISE,
    RESTORE,
    SAVE,
    SLOW,
    STEP,
    STOP,
    TERM,
    Fault,
)

NUM_STEPS = 6
_NUM_PROCESSES = 2
# The step that is disturbed; a checkpoint was complete before it.
_DISTURBED = 4
# Steps of a drawn run between two faults that end the job, at least.
_APART = 3
_PER_JOB = 10
_ENDING = (KILL, STOP, RAISE, TERM, PART)
_ON_ONE_MACHINE = (KILL, KILL, KILL, STOP, RAISE, TERM, SLOW, PAUSE)
_ON_HOSTS = (*_ON_ONE_MACHINE, CUT, CUT, PART)
# Shares of drawn faults.
_AT_INSTRUCTION = 0.7
_AT_START = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job with faults.

    Attributes:
        kind: What the table says of it.
        stages: How many; 0 for one mesh.
        faults: What goes wrong.
    """

    kind: str
    stages: int
    faults: tuple[Fault, ...]


def instructions(seen: str) -> int:
    """Return how many instructions a step has in a process.

    Args:
        seen: How often an undisturbed process came to each place, as it said it.
    """
    return ast.literal_eval(seen)[INSTRUCTION] // NUM_STEPS


def every_case(seen: Mapping[int, str]) -> list[Case]:
    """Return all cases.

    Args:
        seen: Of an undisturbed pipeline, for each process how often it came to each place.
    """
    found: list[Case] = []
    for process in range(_NUM_PROCESSES):
        count = instructions(seen[process])
        first = (_DISTURBED - 1) * count
        found += [
            _case("killed at an instruction", 2, process, KILL, INSTRUCTION, number)
            for number in range(first + 1, first + count + 1)
        ]
        found.append(_case("stopped at an instruction", 2, process, STOP, INSTRUCTION, first + 7))
        found.append(_case("paused at an instruction", 2, process, PAUSE, INSTRUCTION, first + 7))
        found.append(_case("slow at an instruction", 2, process, SLOW, INSTRUCTION, first + 7))
    for stages in (2, 0):
        for process in range(_NUM_PROCESSES):
            for place, number in (
                (STEP, _DISTURBED - 1),
                (INIT, 1),
                (PLAN, 1),
                (COMPILE, 1),
                (SAVE, 2),
            ):
                found.append(_case(f"killed: {place}", stages, process, KILL, place, number))
            restored = Fault(process=process, what=KILL, place=RESTORE, number=1, attempt=1)
            first = Fault(process=process, what=KILL, place=STEP, number=3)
            found.append(Case(kind=f"killed: {RESTORE}", stages=stages, faults=(first, restored)))
            found.append(_case("an exception of the user", stages, process, RAISE, STEP, 3))
            found.append(_case("SIGTERM", stages, process, TERM, STEP, 3))
        found.append(_case("stopped between steps", stages, 1, STOP, STEP, 3))
    return found


def drawn_cases(num_faults: int, seed: int, seen: Mapping[int, str], *, hosts: bool) -> list[Case]:
    """Return jobs with random faults, ten a job.

    Args:
        num_faults: Faults in all.
        seed: Which are drawn.
        seen: As for `every_case`.
        hosts: Whether each process has a host with a link, which may be cut.
    """
    rng = random.Random(seed)
    found: list[Case] = []
    while num_faults > 0:
        stages = rng.choice([2, 2, 0])
        faults: list[Fault] = []
        for _ in range(min(_PER_JOB, num_faults)):
            process = rng.randrange(_NUM_PROCESSES)
            what = rng.choice(_ON_HOSTS if hosts else _ON_ONE_MACHINE)
            # What ends the job comes after what only holds it up.
            first = _APART if what in _ENDING else 1
            place, number = STEP, rng.randrange(first, first + 2)
            if stages and rng.random() < _AT_INSTRUCTION:
                count = instructions(seen[process])
                place, number = INSTRUCTION, rng.randrange(first * count, (first + 2) * count)
            elif what == KILL and rng.random() < _AT_START:
                place, number = rng.choice([INIT, PLAN, COMPILE]), 1
            attempt = sum(fault.what in _ENDING for fault in faults)
            faults.append(
                Fault(process=process, what=what, place=place, number=number, attempt=attempt)
            )
        num_faults -= len(faults)
        found.append(Case(kind="drawn", stages=stages, faults=tuple(faults)))
    return found


def _case(kind: str, stages: int, process: int, what: str, place: str, number: int) -> Case:
    fault = Fault(process=process, what=what, place=place, number=number)
    return Case(kind=kind, stages=stages, faults=(fault,))
