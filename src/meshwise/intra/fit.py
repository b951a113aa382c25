"""Finds a cheap plan that fits into memory.

What a plan really holds (`intra.memory`) follows XLA's own order and is no linear function of the
choices; what is live at the peak of one plan is.  So each plan that does not fit gives a row: the
bytes of what is live at its peak, bounded by the same part of the limit.  Prices on rows lead to
plans that hold less, each a problem without rows; what they chose is mixed within the rows.  Every
plan is judged by its true peak: one that does not fit is never returned.  If prices find none, the
plan of least peak (`intra.least_peak`) decides, which does not depend on the limit: what an error
names is enough.  Small problems are settled by enumeration, with the true peak alone.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np

from meshwise.intra.enumerate_plans import Effort, cheaper_neighbour, cheapest_that_fits
from meshwise.intra.judged import Answer, Judge
from meshwise.intra.least_peak import COST_SHARE, Least, least_peak, lightest
from meshwise.intra.limits import priced_problem
from meshwise.intra.memory import Peak
from meshwise.intra.problem import Array, Row, Solution, objective, row_weight
from meshwise.intra.refusal import too_large
from meshwise.plan.decision import GraphDecision

# Prices that are tried, and mixtures of what they found, each of so many choices at most.
_PRICES = 12
_MIXTURES = 3
_MOST_MIXED = 6
# The first price of a byte, as a part of what a plan costs by byte.
_FIRST_PRICE = 0.3
# Prices change by this power of what a choice weighs in the row, but by no more than the factor.
_STEEPNESS = 12
_MOST_STEP = 3.0
# A plan that costs at most so much more than the bound will do.
_NEAR_BOUND = 1e-3
# Shares of the cost beside bytes that are tried to make the smallest plan cheaper, and the largest.
_SHARES = 5
_MOST_SHARE = 100.0
# Enumeration is tried up to this many nodes, partial choices, and operators that judging looks at.
_SMALL_NODES = 24
_MAX_STEPS = 1_000_000
_MAX_QUESTIONS = 30_000
_QUESTION_WORK = 300_000
# After it gives up, so many neighbours of the best plan are judged at a time.
_MAX_NEIGHBOURS = 1_000

# A cost counts as its bound if no more than rounding lies between.
_SLACK = 1e-9


def fit(judge: Judge, free: Answer, *, limit: int) -> Answer:
    """A cheap plan that fits.

    Args:
        judge: What is searched.
        free: The answer without a limit, which does not fit.
        limit: Bytes of one device.

    Raises:
        TooLargeError: no plan was found that fits.
    """
    if sum(float(held.min()) for held in judge.input_bytes()) > limit:
        # Not even the inputs fit.
        raise too_large(limit, least_peak(judge, free).answer.peak, is_proved=True)
    found, least = _Priced(judge, free, limit).search(), None
    if found is None:
        least = least_peak(judge, free)
        if least.answer.num_bytes <= limit:
            found = _cheaper(judge, free, least, limit)
    bound = max(free.solution.bound, 0.0)
    if len(judge.problem.costs) <= _SMALL_NODES:
        found, proved = _by_enumeration(judge, found, limit)
        bound = max(bound, proved)
    if found is None:
        assert least is not None
        raise too_large(limit, least.answer.peak, is_proved=bound == math.inf)
    cost = found.solution.cost
    exact = bound >= cost * (1 - _SLACK)
    late = time.monotonic() > judge.deadline
    solution = dataclasses.replace(
        found.solution,
        bound=min(bound, cost),
        status="optimal" if exact else "time limit" if late else "bounded",
    )
    return dataclasses.replace(found, solution=solution)


class _Priced:
    """A search with prices on rows: each row is what is live at the peak of a plan that was met."""

    def __init__(self, judge: Judge, free: Answer, limit: int) -> None:
        self.judge = judge
        self.free = free
        self.limit = limit
        self.best: Answer | None = None
        self.rows = [_scaled_row(judge, free, limit)]
        self.prices = [_FIRST_PRICE * free.solution.cost / free.num_bytes]
        self.met = {free.solution.choice: free}

    def search(self) -> Answer | None:
        """The best plan that fits among those that were met; None if none was."""
        for _ in range(_PRICES):
            if self._is_over() or not self._step():
                break
        if self.best is not None:
            for _ in range(_MIXTURES):
                if self._is_over() or not self._mix():
                    break
        return self.best

    def _is_over(self) -> bool:
        if time.monotonic() > self.judge.deadline:
            return True
        near = self.free.solution.bound * (1 + _NEAR_BOUND)
        return self.best is not None and self.best.solution.cost <= near

    def _step(self) -> bool:
        """Take the cheapest choice at the prices and move them; False if there is none."""
        problem = dataclasses.replace(self.judge.problem, rows=tuple(self.rows))
        choice = self.judge.solve_free(priced_problem(problem, self.prices))
        if not choice:
            return False
        self._meet(choice)
        for k, row in enumerate(self.rows):
            excess = row_weight(row, choice) / max(row.limit, 1.0)
            factor = min(max(excess**_STEEPNESS, 1 / _MOST_STEP), _MOST_STEP)
            self.prices[k] *= factor
        return True

    def _mix(self) -> bool:
        """Take the cheapest choice within the rows whose parts were all met; False if it was."""
        problem = self.judge.problem
        ordered = sorted(self.met.values(), key=self._priced_cost)[:_MOST_MIXED]
        if self.best is not None and self.best not in ordered:
            ordered.append(self.best)
        costs: list[Array] = []
        for n, cost in enumerate(problem.costs):
            some = np.full(len(cost), np.inf)
            places = sorted({a.solution.choice[n] for a in ordered})
            some[places] = cost[places]
            costs.append(some)
        mixed = dataclasses.replace(problem, costs=tuple(costs), rows=tuple(self.rows))
        choice = self.judge.solve(mixed).choice
        return bool(choice) and self._meet(choice)

    def _priced_cost(self, answer: Answer) -> float:
        choice = answer.solution.choice
        over = [
            p * max(row_weight(row, choice) - row.limit, 0.0)
            for p, row in zip(self.prices, self.rows, strict=True)
        ]
        return answer.solution.cost + sum(over)

    def _meet(self, choice: tuple[int, ...]) -> bool:
        """Judge a choice; whether it is new."""
        if choice in self.met:
            return False
        answer = self.met[choice] = self.judge.answer(choice)
        if answer.num_bytes <= self.limit:
            if self.best is None or _is_cheaper(answer, self.best):
                self.best = answer
            return True
        row = _scaled_row(self.judge, answer, self.limit)
        if all(row.name != other.name for other in self.rows):
            self.rows.append(row)
            self.prices.append(max(self.prices))
        return True


def _scaled_row(judge: Judge, answer: Answer, limit: int) -> Row:
    """What is live at the peak of a plan, within its part of the limit."""
    row = judge.row_of(answer.peak)
    part = row_weight(row, answer.solution.choice) / answer.num_bytes
    return dataclasses.replace(row, limit=limit * part)


def _is_cheaper(one: Answer, other: Answer) -> bool:
    return one.solution.cost < other.solution.cost


def _cheaper(judge: Judge, free: Answer, least: Least, limit: int) -> Answer:
    """The plan of least peak, which fits, or a cheaper one: costs weigh more while it fits."""
    best, low, high = least.answer, COST_SHARE, _MOST_SHARE
    for _ in range(_SHARES):
        share = math.sqrt(low * high)
        choice = lightest(judge, least, free, share)
        if not choice:
            break
        answer = judge.answer(choice)
        if answer.num_bytes > limit:
            high = share
            continue
        low = share
        best = answer if _is_cheaper(answer, best) else best
    return best


def _by_enumeration(judge: Judge, found: Answer | None, limit: int) -> tuple[Answer | None, float]:
    """A plan that fits, the cheapest if the search comes to its end, and a lower bound."""
    judged: dict[tuple[int, ...], tuple[GraphDecision, Peak]] = {}

    def fits(choice: tuple[int, ...]) -> bool:
        trial = judge.of_choice(choice)
        if trial[1].num_bytes > limit:
            return False
        judged[choice] = trial
        return True

    questions = min(_MAX_QUESTIONS, _QUESTION_WORK // max(judge.num_operators, 1))
    known = found.solution.choice if found is not None else None
    cheapest = cheapest_that_fits(
        judge.problem,
        known,
        fits,
        held=judge.input_bytes(),
        limit=limit,
        effort=Effort(steps=_MAX_STEPS, questions=questions, deadline=judge.deadline),
    )
    best = cheapest.choice
    if not cheapest.proved and best is not None:
        near: tuple[int, ...] | None = best
        while near is not None and time.monotonic() < judge.deadline:
            best = near
            near = cheaper_neighbour(
                judge.problem, best, fits, questions=min(_MAX_NEIGHBOURS, questions)
            )
    if best is None or best == known:
        return found, cheapest.bound
    cost = objective(judge.problem, best)
    solution = Solution(choice=best, cost=cost, bound=0.0, status="", num_left=0)
    return Answer(solution=solution, decision=judged[best][0], peak=judged[best][1]), cheapest.bound
