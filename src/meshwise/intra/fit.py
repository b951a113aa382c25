"""Finds a cheap plan that fits into memory.

What a plan really holds (`intra.memory`) follows XLA's own order and is no linear function of the
choices; the profile in program order (`intra.profile`) is, and lies near it.  So rows bound the
profile, by the limit times the ratio of the two at the plans seen so far, and every plan is judged
by its true peak: a plan that does not fit is never returned.  Small problems are settled by
enumeration, with the true peak alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.errors import InfeasibleError
from meshwise.intra.enumerate_plans import SearchTooLargeError, cheapest_that_fits
from meshwise.intra.expand import expand
from meshwise.intra.memory import Peak, peak
from meshwise.intra.memory_rows import MemoryRows
from meshwise.intra.network import Network
from meshwise.intra.problem import Problem, Row, Solution, objective, row_weight
from meshwise.intra.profile import profile_peak
from meshwise.intra.solve import solve
from meshwise.intra.ties import Ties, tied_row
from meshwise.plan.decision import GraphDecision

_ROUNDS = 16
# After a plan fits, looser rows are tried so often.
_LOOSER = 3
# Enumeration is tried up to this many nodes, partial choices and judged plans.
_SMALL_NODES = 40
_MAX_STEPS = 200_000
_MAX_LEAVES = 1_500


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

    def judge(self, choice: Sequence[int]) -> tuple[GraphDecision, Peak]:
        decision = expand(self.network, self.ties.spread(tuple(choice)))
        return decision, peak(self.network.graph, decision, self.network.mesh)

    def solve(self, rows: Sequence[Row]) -> Solution:
        full = dataclasses.replace(self.problem, rows=tuple(rows))
        left = self.deadline - time.monotonic()
        return solve(full, time_limit_s=left, seed=self.seed, exact=False)


def fit(
    network: Network,
    ties: Ties,
    problem: Problem,
    free: Answer,
    *,
    limit: int,
    deadline: float,
    seed: int,
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

    Raises:
        InfeasibleError: no plan was found that fits.
    """
    search = _Search(
        network=network, ties=ties, problem=problem, limit=limit, deadline=deadline, seed=seed
    )
    found, smallest, proved = _by_rows(search, free)
    if len(problem.costs) <= _SMALL_NODES:
        found = _by_enumeration(search, found) or found
    if found is None:
        raise infeasible(limit, smallest, proved=proved)
    bound = max(free.solution.bound, 0.0)
    exact = found.solution.status == "optimal"
    solution = dataclasses.replace(
        found.solution, bound=found.solution.cost if exact else min(bound, found.solution.cost)
    )
    return dataclasses.replace(found, solution=solution)


def _by_rows(search: _Search, free: Answer) -> tuple[Answer | None, Peak, bool]:
    """The best plan that fits, the smallest peak met, and whether a row cannot be met at all."""
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
    for _ in range(_ROUNDS):
        if time.monotonic() > search.deadline:
            break
        solution = search.solve([dataclasses.replace(row, limit=allowed) for row in rows])
        if not solution.choice:
            if best is None and solution.nearest:
                decision, high = search.judge(solution.nearest)
                smallest = min(smallest, high, key=lambda p: p.num_bytes)
                if high.num_bytes <= search.limit:
                    cost = objective(search.problem, solution.nearest)
                    near = dataclasses.replace(
                        solution, choice=solution.nearest, cost=cost, status="bounded"
                    )
                    best = Answer(solution=near, decision=decision, peak=high)
            return best, smallest, best is None
        decision, high = search.judge(solution.choice)
        smallest = min(smallest, high, key=lambda p: p.num_bytes)
        if high.num_bytes <= search.limit:
            if best is None or solution.cost < best.solution.cost:
                status = dataclasses.replace(solution, status="bounded")
                best = Answer(solution=status, decision=decision, peak=high)
            if looser == 0 or allowed >= failed * 0.98:
                break
            looser -= 1
            allowed = (allowed * failed) ** 0.5
            continue
        profile = profile_peak(graph, decision, mesh)
        row = tied_row(writer.row(profile.time, allowed), search.ties)
        if row.name not in {r.name for r in rows} and row_weight(row, solution.choice) > allowed:
            rows.append(row)
        else:
            failed = min(failed, allowed)
            if best is not None:
                break
            allowed *= min(0.97, search.limit / high.num_bytes)
    return best, smallest, False


def _by_enumeration(search: _Search, found: Answer | None) -> Answer | None:
    """The cheapest plan that fits, if the problem is small enough to tell."""
    judged: dict[tuple[int, ...], tuple[GraphDecision, Peak]] = {}

    def fits(choice: tuple[int, ...]) -> bool:
        judged[choice] = search.judge(choice)
        return judged[choice][1].num_bytes <= search.limit

    try:
        best = cheapest_that_fits(
            search.problem,
            found.solution.choice if found is not None else None,
            fits,
            max_steps=_MAX_STEPS,
            max_leaves=_MAX_LEAVES,
        )
    except SearchTooLargeError:
        return None
    if best is None:
        return None
    if best not in judged:
        judged[best] = search.judge(best)
    cost = objective(search.problem, best)
    solution = Solution(choice=best, cost=cost, bound=cost, status="optimal", num_left=0)
    return Answer(solution=solution, decision=judged[best][0], peak=judged[best][1])


def infeasible(limit: int | None, smallest: Peak | None, *, proved: bool) -> InfeasibleError:
    """The error that names what is largest and what helps."""
    if limit is None or smallest is None:
        return InfeasibleError(
            "no plan satisfies the pins and restrictions: loosen a pin, or allow more collectives"
        )
    why = "no plan fits" if proved else "no plan was found that fits"
    largest = "; ".join(
        f"{b.role} of {b.num_bytes:,} bytes from {b.where or 'an input'}"
        for b in smallest.buffers[:5]
    )
    return InfeasibleError(
        f"{why} into {limit:,} bytes per device; the smallest plan found peaks at "
        f"{smallest.num_bytes:,} bytes. Largest there: {largest}. Use more devices, more "
        "micro-batches, rematerialisation, a smaller batch, or raise memory_bytes"
    )
