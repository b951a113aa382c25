"""Solves a problem within a time limit: reductions, then a bound and a search beside each other.

One thread reduces the problem, raises the bound, takes out choices that cannot be better than the
best solution known, and gives what is left to an exact engine once it is small.  The other one
mends a first solution and searches around the best one.  The calling thread only waits, so that it
is on time and can be interrupted.  Compiled kernels do not hold Python's lock, so both cores work.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext

import numpy as np

from meshwise.assignment.answer import Answer, Progress, checked_answer
from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.bounds.exact_bound import choices_within
from meshwise.assignment.bounds.messages import sweep
from meshwise.assignment.exact.integer_program import num_columns
from meshwise.assignment.exact.small_problem import SMALL_COLUMNS, is_small
from meshwise.assignment.first_phase import await_kernels, solve_at_once
from meshwise.assignment.instance import Instance, evaluate
from meshwise.assignment.kernel_set import KERNELS
from meshwise.assignment.last_phase import (
    close,
    expanded,
    may_prove,
    may_solve_rest,
    note_bound,
    solve_rest,
    try_proof,
)
from meshwise.assignment.reductions.arrays import CUT
from meshwise.assignment.reductions.reduction import Reduction, reduce_instance, reduce_network
from meshwise.assignment.run_state import Shared, Turn, whole
from meshwise.assignment.search.first_solution import first_solution
from meshwise.assignment.search.forward_checking import find_consistent
from meshwise.assignment.search.improvement import Primal
from meshwise.errors import SolverError
from meshwise.kernels.background import compiling

_ROUNDS_A_TURN = 20
# Rounds before a proof is tried.
_EARLY_ROUNDS = 40
# Another reduction pays if it takes out this part of the choices.
_WORTH_REDUCING = 0.1
_LAST_SWEEPS = 50
# Messages have converged when a sweep closes less than this part of the gap.
_SETTLED = 1e-4
# Without rows a reduction is tried each time the gap has become this part of what it was.
_CLOSER = 0.25
# Share of the time limit after which the first reduction is cut short.
_REDUCTION_SHARE = 0.3
# Kept back for the check of the answer, for each node and edge.
_CHECK_S = 1.5e-6
# Share of the time limit, and seconds, that threads are waited for at the end.
_GRACE, _LEAST_GRACE_S = 0.01, 0.03
_LOOK_EVERY_S = 0.1


# What an ablation may leave out: the first reduction, those with a bound and a cost, HiGHS and
# enumeration of what is left, improvement of solutions, and in it the prices of memory, the parts
# that compete for it, and worse choices that are taken for a while.
INGREDIENTS = (
    "reduction",
    "further reductions",
    "exact engines",
    "search",
    "prices",
    "rivals",
    "heat",
)


def solve_instance(
    instance: Instance,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
    small_columns: int = SMALL_COLUMNS,
    interrupt: threading.Event | None = None,
    wait_for_kernels: Callable[[float], bool] | None = None,
    without: Collection[str] = (),
    deterministic: bool = False,
    brief: bool = False,
) -> Answer:
    """Find the cheapest choice within the limit on usage, or the best in the time given.

    Args:
        instance: The problem.
        time_limit_s: Wall time, in seconds.
        seed: Of the random numbers; which thread comes first is under no control.
        report: Is told of progress now and then, in the calling thread.
        small_columns: A problem of at most so many costs is given to the exact engine first.
        interrupt: Ends the search when it is set: the best so far is the answer.
        wait_for_kernels: Function that `kernels.background.compiling` gives, if the caller has
            begun to compile them.
        without: Ingredients to leave out, to measure what they are worth.
        deterministic: One thread in turns of fixed length: the same answer each time, unless the
            limit ends the search.
        brief: End after the first try of a proof, which takes a bounded amount of work.

    Raises:
        SolverError: the time limit is no number, an ingredient is unknown, or the answer did not
            pass the check.
    """
    if not math.isfinite(time_limit_s):
        raise SolverError(f"time_limit_s={time_limit_s}: a finite number of seconds is needed")
    if unknown := set(without) - set(INGREDIENTS):
        known = ", ".join(INGREDIENTS)
        raise SolverError(f"there is no ingredient {min(unknown)!r}; there are {known}")
    start = time.monotonic()
    check_s = _CHECK_S * (instance.num_nodes + len(instance.edges))
    deadline = start + max(time_limit_s - check_s, 0.5 * time_limit_s)
    shared = Shared(instance=instance, deadline=deadline, num_nodes=instance.num_nodes)
    shared.without, shared.deterministic = frozenset(without), deterministic
    shared.brief = brief
    if "reduction" in without:
        shared.reducing[0] = CUT
    if interrupt is not None:
        shared.interrupt = interrupt
    if is_small(instance, small_columns) and solve_at_once(shared, start, seed):
        return _result(shared, start, seed)

    def tell() -> None:
        if report is not None:
            report(_progress(shared, start, has_kernels=False))

    waiting = (
        compiling(KERNELS, _ignore) if wait_for_kernels is None else nullcontext(wait_for_kernels)
    )
    with waiting as wait:
        has_kernels = await_kernels(shared, wait, start, seed, tell)
    if has_kernels:
        _run_threads(shared, seed, start, report)
    return _result(shared, start, seed)


def _ignore(_: str) -> None:
    """What is announced; a library says nothing."""


def _result(shared: Shared, start: float, seed: int) -> Answer:
    if shared.error is not None:
        raise SolverError(f"the solver failed: {shared.error}") from shared.error
    with shared.lock:
        choice = shared.choice
    if choice is None or shared.reduction is None:
        status = "infeasible" if shared.is_impossible else "unknown"
        status = status if shared.known is None else "feasible"
        return checked_answer(shared.instance, shared.known, shared.proven, status, start, seed)
    full = tuple(shared.reduction.expand(choice).tolist())
    known = shared.known
    if known is not None and (evaluate(shared.instance, known).cost or 0) < round(shared.cost):
        full = known
    return checked_answer(shared.instance, full, shared.proven, "feasible", start, seed)


def _run_threads(
    shared: Shared, seed: int, start: float, report: Callable[[Progress], None] | None
) -> None:
    threads = [
        threading.Thread(target=_guarded, args=(work, shared, seed), daemon=True)
        for work in (_reduce_and_bound, *(() if shared.deterministic else (_search,)))
    ]
    cut = start + _REDUCTION_SHARE * (shared.deadline - start)
    try:
        for thread in threads:
            thread.start()
        while not (shared.must_stop or shared.interrupt.is_set()):
            left = (shared.deadline if shared.is_reduced.is_set() else cut) - time.monotonic()
            shared.news.wait(min(_LOOK_EVERY_S, max(left, 0.001)))
            shared.news.clear()
            if not shared.is_reduced.is_set() and time.monotonic() >= cut:
                shared.reducing[0] = CUT
                cut = shared.deadline
            if report is not None:
                report(_progress(shared, start))
    finally:
        shared.finish()
        # What a kernel or engine is in the middle of is not waited for: its result is of no use.
        until = time.monotonic() + max(_GRACE * (shared.deadline - start), _LEAST_GRACE_S)
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout=max(until - time.monotonic(), 0.0))


def _progress(shared: Shared, start: float, *, has_kernels: bool = True) -> Progress:
    return Progress(
        seconds=time.monotonic() - start,
        cost=_known_cost(shared),
        bound=shared.proven,
        num_nodes=shared.num_nodes,
        has_kernels=has_kernels,
    )


def _known_cost(shared: Shared) -> int | None:
    if shared.choice is not None:
        return round(shared.cost)
    return None if shared.known is None else evaluate(shared.instance, shared.known).cost


def _guarded(work: Callable[[Shared, int], None], shared: Shared, seed: int) -> None:
    try:
        work(shared, seed)
    except BaseException as error:  # A thread's error is raised by the caller.
        shared.error = error
        shared.finish()


def _reduce_and_bound(shared: Shared, seed: int) -> None:
    reduction = reduce_instance(shared.instance, shared.reducing)
    if shared.must_stop:
        return
    if reduction.infeasible:
        shared.is_impossible = True
        shared.finish()
        return
    shared.reduction = reduction
    shared.num_nodes = len(reduction.network.size)
    if not shared.num_nodes:
        shared.offer(np.zeros(0, np.int64))
        shared.proven = whole(shared.cost)
        shared.finish()
        return
    shared.is_reduced.set()
    _raise_bound(shared, seed)


def _raise_bound(shared: Shared, seed: int) -> None:
    """Bound, reduce again, and solve exactly what has become small."""
    chain: list[Reduction] = []
    ascent = Ascent.of(shared.network, shared.stop)
    primal = Primal(shared, seed) if shared.deterministic else None
    if may_prove(ascent, shared):
        # Prices that are nearly the best will do.
        _ascend(ascent, chain, shared, primal, rounds=_EARLY_ROUNDS)
        if shared.must_stop or try_proof(ascent, chain, shared):
            return
    if shared.brief:
        shared.finish()
        return
    tried = num_columns(ascent.network)
    while True:
        _ascend(ascent, chain, shared, primal)
        if shared.must_stop:
            return
        is_done = ascent.is_done
        # A second try pays once there is far less.
        if is_done and 2 * num_columns(ascent.network) <= tried and may_prove(ascent, shared):
            tried = num_columns(ascent.network)
            if try_proof(ascent, chain, shared):
                return
        deeper = _reduced_further(ascent, shared)
        if shared.must_stop:
            return
        if deeper is not None:
            chain.append(deeper)
            if deeper.infeasible or not len(deeper.network.size):
                close(chain, shared)
                return
            ascent = _warm(ascent, deeper, shared)
            shared.num_nodes = len(deeper.network.size)
        elif is_done and may_solve_rest(ascent, shared):
            solve_rest(ascent, chain, shared, seed)
            return
        else:
            ascent.restart()


def _ascend(
    ascent: Ascent,
    chain: list[Reduction],
    shared: Shared,
    primal: Primal | None,
    *,
    rounds: float = math.inf,
) -> None:
    known = ascent.cost
    turn = Turn(_ROUNDS_A_TURN, is_fixed=shared.deterministic)
    near = _near(ascent, shared)
    while rounds > 0 and not (
        shared.must_stop or ascent.is_done or shared.cost - ascent.bound <= near
    ):
        rounds -= turn.count
        with turn:
            ascent.run(turn.count)
        if ascent.cost < known:
            known = ascent.cost
            shared.offer(expanded(chain, ascent.choice))
        if primal is not None:
            primal.turn()
        ascent.cost = min(ascent.cost, shared.cost)
        known = min(known, ascent.cost)
        if not chain:
            shared.prices = ascent.best_prices.copy()
        if ascent.bound > shared.bound:
            shared.bound = ascent.bound
            note_bound(ascent, shared)
        if math.isinf(near):
            near = _near(ascent, shared)


def _near(ascent: Ascent, shared: Shared) -> float:
    """The gap at which a reduction is tried early; -inf for never.

    Prices of rows would begin anew after one that does not pay.
    """
    gap = shared.cost - ascent.bound
    return _CLOSER * gap if math.isfinite(gap) and not len(ascent.prices) else -math.inf


def _settled_messages(ascent: Ascent, shared: Shared) -> float:
    """Converge the messages at the best prices; returns the bound there."""
    ascent.restart()
    bound = before = -math.inf
    besides = ascent.network.constant - float(ascent.prices @ ascent.network.capacity)
    for _ in range(_LAST_SWEEPS):
        if shared.must_stop:
            break
        sweep(True, ascent.network, ascent.held)
        bound = sweep(False, ascent.network, ascent.held) + besides
        if bound - before <= _SETTLED * (shared.cost - bound):
            break
        before = bound
    note_bound(ascent, shared)
    return bound


def _reduced_further(ascent: Ascent, shared: Shared) -> Reduction | None:
    """Take out choices that cannot be better; None if there are too few."""
    if not np.isfinite(shared.cost) or "further reductions" in shared.without:
        return None
    bound = _settled_messages(ascent, shared)
    keep = choices_within(ascent.network, ascent.held, ascent.prices, bound, shared.cost)
    if keep.mean() > 1 - _WORTH_REDUCING:
        return None
    return reduce_network(ascent.network, keep, shared.stop)


def _warm(ascent: Ascent, deeper: Reduction, shared: Shared) -> Ascent:
    """An ascent on a smaller network that begins with the prices of the larger one."""
    fresh = Ascent.of(deeper.network, shared.stop)
    fresh.best_prices[:] = ascent.best_prices[deeper.rows]
    fresh.restart()
    fresh.cost = ascent.cost
    return fresh


def _search(shared: Shared, seed: int) -> None:
    """Find a solution, and improve the best one until time is over."""
    known = first_solution(shared.instance, must_stop=shared.is_reduced.is_set, seed=seed)
    # The exact engine may have left one.
    shared.known = shared.known or known
    shared.is_reduced.wait()
    if shared.must_stop:
        return
    choice, is_impossible = find_consistent(shared.network, shared.stop)
    if choice is not None:
        shared.offer(choice)
    if is_impossible:
        shared.is_impossible = True
        shared.finish()
    primal = Primal(shared, seed)
    while not shared.must_stop:
        primal.turn()
