"""Finds a cheap plan that fits into memory.

What a plan really holds (`intra.memory`) follows XLA's own order and is no linear function of the
choices; the profile in program order (`intra.profile`) is, and lies near it.  So rows bound the
profile, by the limit times the ratio of the two at the plans seen so far, and every plan is judged
by its true peak: a plan that does not fit is never returned.  Small problems are settled by
enumeration, with the true peak alone.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.intra.enumerate_plans import Effort, cheaper_neighbour, cheapest_that_fits
from meshwise.intra.expand import expand
from meshwise.intra.memory import Peak, peak
from meshwise.intra.memory_rows import MemoryRows
from meshwise.intra.network import Network
from meshwise.intra.problem import Array, Problem, Row, Solution, objective, row_weight
from meshwise.intra.profile import profile_peak
from meshwise.intra.shapes import local_bytes
from meshwise.intra.solve import Recorder, solve
from meshwise.intra.ties import Ties, tied_row
from meshwise.plan.decision import GraphDecision
from meshwise.units import bytes_text

_ROUNDS = 16
# After a plan fits, looser rows are tried so often.
_LOOSER = 3
# If the plan of least memory needs this much more than there is, looser rows do not help.
_HOPELESS = 1.15
# Enumeration is tried up to this many nodes, partial choices and judged plans.
_SMALL_NODES = 24
_MAX_STEPS = 1_000_000
_MAX_QUESTIONS = 30_000
# After it gives up, so many neighbours of the best plan are judged at a time.
_MAX_NEIGHBOURS = 1_000
# Random starts of the descent on the true peak, for small problems in which nothing fitted yet.
_STARTS = 12

# A cost counts as its bound if no more than rounding lies between.
_SLACK = 1e-9

# Consumers that an error names.
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A solution with its plan and the plan's true peak."""

    solution: Solution
    decision: GraphDecision
    peak: Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What does not change during a search."""

    network: Network
    ties: Ties
    problem: Problem
    limit: int
    deadline: float
    seed: int
    record: Recorder | None = None

    def judge(self, choice: Sequence[int]) -> tuple[GraphDecision, Peak]:
        decision = expand(self.network, self.ties.spread(tuple(choice)))
        return decision, peak(self.network.graph, decision, self.network.mesh)

    def solve(self, rows: Sequence[Row]) -> Solution:
        full = dataclasses.replace(self.problem, rows=tuple(rows))
        left = self.deadline - time.monotonic()
        return solve(full, time_limit_s=left, seed=self.seed, exact=False, record=self.record)


def fit(
    network: Network,
    ties: Ties,
    problem: Problem,
    free: Answer,
    *,
    limit: int,
    deadline: float,
    seed: int,
    record: Recorder | None = None,
) -> Answer:
    """A cheap plan that fits.

    Args:
        network: All decisions.
        ties: Which nodes decide together.
        problem: The problem of the ties, without rows.
        free: Its answer without a limit, which does not fit.
        limit: Bytes of one device.
        deadline: Of `time.monotonic`.
        seed: Of the solver.
        record: Is given each problem that is solved.

    Raises:
        InfeasibleError: no plan was found that fits.
    """
    search = _Search(
        network=network,
        ties=ties,
        problem=problem,
        limit=limit,
        deadline=deadline,
        seed=seed,
        record=record,
    )
    if sum(float(held.min()) for held in _held(search)) > limit:
        # Not even the inputs fit.
        raise infeasible(limit, free.peak, proved=True)
    found, smallest = _by_rows(search, free)
    bound = max(free.solution.bound, 0.0)
    if len(problem.costs) <= _SMALL_NODES:
        for start in _starts(search, free.solution.choice):
            found = found or _by_descent(search, start)
        found, proved = _by_enumeration(search, found)
        bound = max(bound, proved)
    if found is None:
        raise infeasible(limit, smallest, proved=bound == math.inf)
    cost = found.solution.cost
    exact = bound >= cost * (1 - _SLACK)
    solution = dataclasses.replace(
        found.solution,
        bound=min(bound, cost),
        status="optimal" if exact else "bounded",
    )
    return dataclasses.replace(found, solution=solution)


def _by_rows(search: _Search, free: Answer) -> tuple[Answer | None, Peak]:
    """The best plan that fits, and the smallest peak met."""
    graph, mesh = search.network.graph, search.network.mesh
    writer = MemoryRows(search.network)
    rows: list[Row] = []
    best: Answer | None = None
    smallest = free.peak
    profile = profile_peak(graph, free.decision, mesh)
    allowed = search.limit * profile.num_bytes / free.peak.num_bytes
    failed = float(profile.num_bytes)
    rows.append(tied_row(writer.row(profile.time, allowed), search.ties))
    looser = _LOOSER
    rounds = iter(range(_ROUNDS))
    while next(rounds, None) is not None and time.monotonic() < search.deadline:
        solution = search.solve([dataclasses.replace(row, limit=allowed) for row in rows])
        if not solution.choice:
            # The rows are no more than near the truth: a little looser may fit.
            near = _nearest(search, solution) or free
            smallest = min(smallest, near.peak, key=lambda p: p.num_bytes)
            if best is None and near.peak.num_bytes <= search.limit:
                best = near
            hopeless = best is None and near.peak.num_bytes > _HOPELESS * search.limit
            if hopeless or allowed >= failed * 0.99:
                break
            allowed = max((allowed * failed) ** 0.5, allowed * 1.005)
            continue
        decision, high = search.judge(solution.choice)
        smallest = min(smallest, high, key=lambda p: p.num_bytes)
        if high.num_bytes <= search.limit:
            if best is None or solution.cost < best.solution.cost:
                best = Answer(solution=solution, decision=decision, peak=high)
            if looser == 0 or allowed >= failed * 0.98:
                break
            looser -= 1
            allowed = (allowed * failed) ** 0.5
            continue
        profile = profile_peak(graph, decision, mesh)
        row = tied_row(writer.row(profile.time, allowed), search.ties)
        if row.name not in {r.name for r in rows} and row_weight(row, solution.choice) > allowed:
            rows.append(row)
            continue
        if best is not None:
            break
        failed = min(failed, allowed)
        allowed *= min(0.97, search.limit / high.num_bytes)
    return best, smallest


def _nearest(search: _Search, solution: Solution) -> Answer | None:
    """The plan that comes nearest to rows that cannot be met."""
    if not solution.nearest:
        return None
    decision, high = search.judge(solution.nearest)
    cost = objective(search.problem, solution.nearest)
    near = dataclasses.replace(solution, choice=solution.nearest, cost=cost)
    return Answer(solution=near, decision=decision, peak=high)


def _starts(search: _Search, first: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield first
    rng = np.random.default_rng(search.seed)
    for _ in range(_STARTS):
        yield tuple(
            int(rng.choice(np.flatnonzero(np.isfinite(costs)))) for costs in search.problem.costs
        )


def _by_descent(search: _Search, start: tuple[int, ...]) -> Answer | None:
    """A plan that fits, by single changes that lower the true peak; None if none is met."""
    choice = list(start)
    decision, high = search.judge(choice)
    changed = True
    while changed:
        changed = False
        for u, costs in enumerate(search.problem.costs):
            for i in np.flatnonzero(np.isfinite(costs)).tolist():
                before, choice[u] = choice[u], i
                trial = search.judge(choice)
                if trial[1].num_bytes < high.num_bytes:
                    (decision, high), changed = trial, True
                    if high.num_bytes <= search.limit:
                        cost = objective(search.problem, choice)
                        solution = Solution(
                            choice=tuple(choice), cost=cost, bound=0.0, status="", num_left=0
                        )
                        return Answer(solution=solution, decision=decision, peak=high)
                else:
                    choice[u] = before
    return None


def _held(search: _Search) -> list[Array]:
    """Bytes of the inputs, which stay for the whole step, per node and choice."""
    network, sizes = search.network, search.network.mesh.sizes
    held = [np.zeros(len(costs)) for costs in search.problem.costs]
    for t in dict.fromkeys(network.graph.inputs):
        u = network.maker[0, t]
        tensor = network.graph.tensors[t]
        held[search.ties.class_of[u]] += np.array(
            [local_bytes(tensor, w, sizes) for w in network.nodes[u].layouts], dtype=np.float64
        )
    return held


def _by_enumeration(search: _Search, found: Answer | None) -> tuple[Answer | None, float]:
    """A plan that fits, the cheapest if the search comes to its end, and a lower bound."""
    judged: dict[tuple[int, ...], tuple[GraphDecision, Peak]] = {}

    def fits(choice: tuple[int, ...]) -> bool:
        trial = search.judge(choice)
        if trial[1].num_bytes > search.limit:
            return False
        judged[choice] = trial
        return True

    known = found.solution.choice if found is not None else None
    cheapest = cheapest_that_fits(
        search.problem,
        known,
        fits,
        held=_held(search),
        limit=search.limit,
        effort=Effort(steps=_MAX_STEPS, questions=_MAX_QUESTIONS, deadline=search.deadline),
    )
    best = cheapest.choice
    if not cheapest.proved and best is not None:
        near: tuple[int, ...] | None = best
        while near is not None and time.monotonic() < search.deadline:
            best = near
            near = cheaper_neighbour(search.problem, best, fits, questions=_MAX_NEIGHBOURS)
    if best is None or best == known:
        return found, cheapest.bound
    cost = objective(search.problem, best)
    solution = Solution(choice=best, cost=cost, bound=0.0, status="", num_left=0)
    return Answer(solution=solution, decision=judged[best][0], peak=judged[best][1]), cheapest.bound


def infeasible(limit: int | None, smallest: Peak | None, *, proved: bool) -> InfeasibleError:
    """The error that names what is largest and what helps."""
    if limit is None or smallest is None:
        return InfeasibleError(
            "no plan satisfies the pins and restrictions: loosen a pin, or allow more collectives"
        )
    why = "no plan fits" if proved else "no plan was found that fits"
    sums: dict[str, tuple[int, int]] = {}
    for b in smallest.buffers:
        what = (
            f"{b.role} {b.where or 'an input'}" if b.role == "input" else f"{b.role} from {b.where}"
        )
        count, num_bytes = sums.get(what, (0, 0))
        sums[what] = (count + 1, num_bytes + b.num_bytes)
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    largest = "; ".join(
        f"{bytes_text(num_bytes)} in {count} x {what}"
        if count > 1
        else f"{bytes_text(num_bytes)} in {what}"
        for what, (count, num_bytes) in ordered[:_NAMED]
    )
    return InfeasibleError(
        f"{why} into {bytes_text(limit)} ({limit} bytes) per device; the smallest plan found peaks "
        f"at {bytes_text(smallest.num_bytes)}. Largest there: {largest}. Use more devices, more "
        "micro-batches, rematerialisation, a smaller batch, or raise memory_bytes"
    )
