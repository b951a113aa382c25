"""Solves a problem within a time limit: reductions, then a bound and a search beside each other.

One thread reduces the problem, raises the bound, takes out choices that cannot be better than the
best solution known, and gives what is left to an exact engine once it is small.  Each of the others
mends a first solution and searches around the best one, with random numbers of its own.  The
calling thread only waits, so that it is on time and can be interrupted.  Compiled kernels do not
hold Python's lock, so up to eight cores work.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np

from meshwise.assignment.answer import Answer, Progress, checked_answer
from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.bounds.exact_bound import choices_within
from meshwise.assignment.bounds.messages import sweep
from meshwise.assignment.exact.integer_program import num_columns
from meshwise.assignment.exact.small_problem import is_small
from meshwise.assignment.first_phase import await_kernels, solve_at_once
from meshwise.assignment.instance import Instance, evaluate
from meshwise.assignment.kernel_set import KERNELS
from meshwise.assignment.last_phase import (
    close,
    may_solve_rest,
    note_bound,
    solve_rest,
    try_proof,
)
from meshwise.assignment.options import SolverOptions, Watch
from meshwise.assignment.proof.proof import is_provable
from meshwise.assignment.reductions.arrays import CUT
from meshwise.assignment.reductions.reduction import (
    Reduction,
    expanded,
    reduce_instance,
    reduce_network,
)
from meshwise.assignment.run_state import Shared, Turn, whole
from meshwise.assignment.search.first_solution import first_solution
from meshwise.assignment.search.forward_checking import find_consistent
from meshwise.assignment.search.improvement import Primal
from meshwise.errors import SolverError
from meshwise.kernels.background import compiling
from meshwise.system.cores import usable_cores

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
_GRACE, _LEAST_GRACE_S, _MOST_GRACE_S = 0.01, 0.03, 3.0
_LOOK_EVERY_S = 0.1
# Threads that search; each has as much scratch as the problem, and more were not measured.
_MOST_SEARCHES = 7


def solve_instance(
    instance: Instance,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    options: SolverOptions | None = None,
    watch: Watch | None = None,
) -> Answer:
    """Find the cheapest choice within the limit on usage, or the best in the time given.

    Args:
        instance: The problem.
        time_limit_s: Wall time, in seconds; may be infinite where work is counted.
        seed: Seed of the random numbers; which of the threads comes first is under no control.
        options: How to solve it.
        watch: How the caller watches and ends the search.

    Returns:
        The best choice found, checked in integers, and what is proved of it.

    Raises:
        SolverError: the time limit is no number, or the answer did not pass the check.
    """
    options, watch = options or SolverOptions(), watch or Watch()
    if not (math.isfinite(time_limit_s) or (options.counted and time_limit_s > 0)):
        raise SolverError(f"time_limit_s={time_limit_s}: a finite number of seconds is needed")
    start = time.monotonic()
    check_s = _CHECK_S * (instance.num_nodes + len(instance.edges))
    shared = Shared(
        instance=instance,
        options=options,
        seed=seed,
        start=start,
        deadline=start + max(time_limit_s - check_s, 0.5 * time_limit_s),
        interrupt=watch.interrupt,
    )
    if not (is_small(instance, options.small_columns) and solve_at_once(shared)):
        _solve_large(shared, watch)
    return _result(shared)


def _solve_large(shared: Shared, watch: Watch) -> None:
    """Solve the problem with kernels, where there is a deadline as soon as all are there."""
    wait = watch.wait_for_kernels
    if wait is None and math.isinf(shared.deadline):
        # Nobody's time runs out: what is called is compiled then, and the rest not at all.
        _run_threads(shared, watch)
        return
    waiting = compiling(KERNELS, _ignore) if wait is None else nullcontext(wait)
    with waiting as wait:
        has_kernels = await_kernels(shared, wait, lambda: _report(shared, watch, has_kernels=False))
    if has_kernels:
        _run_threads(shared, watch)


def _ignore(_: str) -> None:
    """Take an announcement; a library says nothing."""


def _result(shared: Shared) -> Answer:
    if shared.error is not None:
        raise SolverError(f"the solver failed: {shared.error}") from shared.error
    with shared.lock:
        choice, cost = shared.choice, shared.cost
    known, status = shared.known, "feasible"
    if choice is None or shared.reduction is None:
        if known is None:
            status = "infeasible" if shared.is_impossible else "unknown"
    elif known is None or (evaluate(shared.instance, known).cost or 0) >= round(cost):
        known = tuple(shared.reduction.expand(choice).tolist())
    return checked_answer(shared.instance, known, shared.proven, status, shared.start, shared.seed)


def _run_threads(shared: Shared, watch: Watch) -> None:
    is_counted = shared.options.counted
    num_searches = 0 if is_counted else min(max(usable_cores() - 1, 1), _MOST_SEARCHES)
    searches = [partial(_search, number=k) for k in range(num_searches)]
    threads = [
        threading.Thread(target=_guarded, args=(work, shared), daemon=True)
        for work in (_reduce_and_bound, *searches)
    ]
    limit_s = shared.deadline - shared.start
    # A counted run is not cut short: what is left would depend on the clock.
    cut = shared.deadline if is_counted else shared.start + _REDUCTION_SHARE * limit_s
    try:
        for thread in threads:
            thread.start()
        while not (shared.is_over or shared.is_late or shared.interrupt.is_set()):
            left = (shared.deadline if shared.is_reduced.is_set() else cut) - time.monotonic()
            shared.news.wait(min(_LOOK_EVERY_S, max(left, 0.001)))
            shared.news.clear()
            if not shared.is_reduced.is_set() and time.monotonic() >= cut:
                shared.reducing[0] = CUT
                cut = shared.deadline
            _report(shared, watch)
    finally:
        shared.finish()
        # What a kernel or engine is in the middle of is not waited for: its result is of no use.
        grace_s = min(max(_GRACE * limit_s, _LEAST_GRACE_S), _MOST_GRACE_S)
        until = time.monotonic() + grace_s
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout=max(until - time.monotonic(), 0.0))


def _report(shared: Shared, watch: Watch, *, has_kernels: bool = True) -> None:
    if watch.report is not None:
        progress = Progress(
            seconds=time.monotonic() - shared.start,
            cost=_known_cost(shared),
            bound=shared.proven,
            num_nodes=shared.num_nodes,
            has_kernels=has_kernels,
        )
        watch.report(progress)


def _known_cost(shared: Shared) -> int | None:
    if shared.choice is not None:
        return round(shared.cost)
    return None if shared.known is None else evaluate(shared.instance, shared.known).cost


def _guarded(work: Callable[[Shared], None], shared: Shared) -> None:
    try:
        work(shared)
        if shared.options.counted:
            # There is no other thread that goes on.
            shared.finish()
    except BaseException as error:  # A thread's error is raised by the caller.
        shared.error = error
        shared.finish()


def _reduce_and_bound(shared: Shared) -> None:
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
    _raise_bound(shared)


def _raise_bound(shared: Shared) -> None:
    """Bound, reduce again, and solve exactly what has become small."""
    chain: list[Reduction] = []
    ascent = Ascent.of(shared.network, shared.stop)
    primal = Primal(shared) if shared.options.counted else None
    if is_provable(ascent.network):
        # Prices that are nearly the best will do.
        _ascend(ascent, chain, shared, primal, rounds=_EARLY_ROUNDS)
        if shared.must_stop or try_proof(ascent, chain, shared):
            return
    if shared.options.brief:
        shared.finish()
        return
    tried = num_columns(ascent.network)
    while True:
        _ascend(ascent, chain, shared, primal)
        if shared.must_stop:
            return
        is_done = ascent.is_done
        # A second try pays once there is far less.
        if is_done and 2 * num_columns(ascent.network) <= tried and is_provable(ascent.network):
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
        elif is_done and may_solve_rest(ascent):
            solve_rest(ascent, chain, shared)
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
    turn = Turn(_ROUNDS_A_TURN, is_counted=shared.options.counted)
    near = _near(ascent, shared)
    while rounds > 0 and not (
        shared.must_stop or ascent.is_done or shared.cost - ascent.bound <= near
    ):
        rounds -= turn.count
        shared.entries -= turn.count * ascent.entries_a_round
        with turn:
            ascent.run(turn.count)
        if ascent.cost < known:
            known = ascent.cost
            shared.offer(expanded(chain, ascent.choice))
        if ascent.recent_cost < shared.suggested[0]:
            suggested = expanded(chain, ascent.recent_choice)
            with shared.lock:
                shared.suggested = ascent.recent_cost, suggested
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
    """Return the gap at which a reduction is tried early; -inf for never.

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
        shared.entries -= ascent.entries_a_round
        sweep(True, ascent.network, ascent.held)
        bound = sweep(False, ascent.network, ascent.held) + besides
        if bound - before <= _SETTLED * (shared.cost - bound):
            break
        before = bound
    note_bound(ascent, shared)
    return bound


def _reduced_further(ascent: Ascent, shared: Shared) -> Reduction | None:
    """Take out choices that cannot be better; None if there are too few."""
    if not np.isfinite(shared.cost):
        return None
    bound = _settled_messages(ascent, shared)
    keep = choices_within(ascent.network, ascent.held, ascent.prices, bound, shared.cost)
    if keep.mean() > 1 - _WORTH_REDUCING:
        return None
    return reduce_network(ascent.network, keep, shared.stop)


def _warm(ascent: Ascent, deeper: Reduction, shared: Shared) -> Ascent:
    """Return an ascent on a smaller network that begins with the prices of the larger one."""
    fresh = Ascent.of(deeper.network, shared.stop)
    fresh.best_prices[:] = ascent.best_prices[deeper.rows]
    fresh.restart()
    fresh.cost = ascent.cost
    return fresh


def _search(shared: Shared, number: int) -> None:
    """Improve the best solution until time is over; the first of these threads finds one."""
    if not number:
        _find_first(shared)
    shared.is_reduced.wait()
    if shared.must_stop:
        return
    primal = Primal(shared, number)
    while not shared.must_stop:
        primal.turn()


def _find_first(shared: Shared) -> None:
    seed, is_reduced = shared.seed, shared.is_reduced
    known = first_solution(shared.instance, must_stop=is_reduced.is_set, seed=seed)
    # The exact engine may have left one.
    shared.known = shared.known or known
    is_reduced.wait()
    if shared.must_stop:
        return
    choice, is_impossible = find_consistent(shared.network, shared.stop)
    if choice is not None:
        shared.offer(choice)
    if is_impossible:
        shared.is_impossible = True
        shared.finish()
