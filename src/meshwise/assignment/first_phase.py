"""Begins a run: small problems as they are, and what can be had before kernels are compiled."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import numpy as np

from meshwise.assignment.exact.integer_program import ExactAnswer
from meshwise.assignment.exact.small_problem import solve_small
from meshwise.assignment.run_state import Shared, whole
from meshwise.assignment.search.first_solution import first_solution

# The exact engine may take so long for a small problem before anything else is tried.
_SMALL_S = 3.0
# Share of the time that is left for a first solution where kernels are not there yet.
_SHARE_WITHOUT_KERNELS = 0.3
_LOOK_EVERY_S = 0.1


def solve_at_once(shared: Shared, start: float, seed: int) -> bool:
    """Give the problem to the exact engine as it is; whether nothing is left to do.

    The calling thread only waits: an interrupt does not wait for the engine.
    """
    share = (shared.deadline - start) / 4
    until = start + (share if shared.deterministic else min(_SMALL_S, share))
    found: list[ExactAnswer] = []
    stop = np.zeros(1, np.int8)

    def work() -> None:
        try:
            found.append(solve_small(shared.instance, deadline=until, seed=seed, stop=stop))
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
    shared: Shared,
    wait: Callable[[float], bool],
    start: float,
    seed: int,
    tell: Callable[[], object],
) -> bool:
    """Wait until kernels are there, and after most of the time look for a first solution.

    Args:
        shared: What is known; gets the solution.
        wait: Waits until all kernels are there, or a time of `time.monotonic` has passed; whether
            they are.
        start: Of `time.monotonic`.
        seed: Of the random numbers.
        tell: Is called once the first solution was looked for.

    Returns:
        Whether they are; if not, the time is over.
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

    if waited(shared.deadline - _SHARE_WITHOUT_KERNELS * (shared.deadline - start)):
        return True
    shared.known = first_solution(shared.instance, must_stop=is_over, seed=seed)
    tell()
    return waited(shared.deadline)
