"""Begins a run: small problems as they are, and what can be had before kernels are compiled."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwise.assignment.exact.integer_program import ExactAnswer
from meshwise.assignment.exact.small_problem import solve_small
from meshwise.assignment.run_state import LOOKS_AT_ONCE, Shared, whole
from meshwise.assignment.search.first_solution import first_solution

# Seconds that the exact engine may take for a small problem before anything else is tried, and the
# share of the time limit.  In a counted run looks decide.
_SMALL_S, _SMALL_SHARE = 3.0, 0.25
# Share of the time after which a first solution is looked for where kernels are not there yet.
_SHARE_FOR_KERNELS = 0.7
_LOOK_EVERY_S = 0.1


def solve_at_once(shared: Shared) -> bool:
    """Give the problem to the exact engine as it is; return whether nothing is left to do.

    The calling thread only waits: an interrupt does not wait for the engine.
    """
    effort = shared.effort(LOOKS_AT_ONCE)
    if not shared.options.counted:
        share_s = min(_SMALL_S, _SMALL_SHARE * (shared.deadline - shared.start))
        effort = replace(effort, deadline=shared.start + share_s)
    found: list[ExactAnswer] = []
    stop = np.zeros(1, np.int8)

    def work() -> None:
        try:
            found.append(solve_small(shared.instance, effort, stop))
        except BaseException as error:  # Raised by the caller.
            shared.error = error

    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        while thread.is_alive() and not shared.interrupt.is_set():
            thread.join(_LOOK_EVERY_S)
    finally:
        stop[0] = 1
    if not found:
        return True
    small = found[0]
    if small.choice is not None:
        shared.known = tuple(small.choice.tolist())
    if small.is_proved:
        shared.is_impossible = shared.known is None
        shared.proven = 0 if shared.is_impossible else whole(math.inf)
    return small.is_proved


def await_kernels(
    shared: Shared, wait: Callable[[float], bool], tell: Callable[[], object]
) -> bool:
    """Wait until kernels are there, and after most of the time look for a first solution.

    Args:
        shared: What is known; gets the solution.
        wait: Function that waits until all kernels are there, or a moment of `time.monotonic` has
            passed; it returns whether they are there.
        tell: Function that is called once the first solution was looked for.

    Returns:
        Whether the kernels are there; if not, the time is over.
    """

    def is_over() -> bool:
        return shared.must_stop or shared.interrupt.is_set()

    def waited(until: float) -> bool:
        """In short steps, so that an interrupt is seen."""
        while not is_over():
            if wait(min(time.monotonic() + _LOOK_EVERY_S, until)):
                return True
            if time.monotonic() >= until:
                break
        return False

    if waited(shared.start + _SHARE_FOR_KERNELS * (shared.deadline - shared.start)):
        return True
    shared.known = first_solution(shared.instance, must_stop=is_over, seed=shared.seed)
    tell()
    return waited(shared.deadline)
