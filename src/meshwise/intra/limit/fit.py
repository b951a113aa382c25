"""Finds a cheap plan that fits into memory.

What a plan really holds (`memory.peak`) follows the compiler's own order and is no linear function
of the choices; what is live at the peak of one plan is.  So each plan that does not fit gives a
row: the bytes of what is live at its peak, bounded by the same part of the limit.  Prices on rows
lead to plans that hold less, each a problem without rows; what they chose is mixed within the rows.
Every plan is judged by its true peak: one that does not fit is never returned.  If prices find
none, the plan of least peak (`least_peak`) decides, which does not depend on the limit: what an
error names is enough.  Small problems are settled by enumeration, with the true peak alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from meshwise.assignment.bounds.row_prices import priced_problem
from meshwise.assignment.exact.best_first import (
    BestFirstEffort,
    cheaper_neighbour,
    cheapest_that_fits,
)
from meshwise.assignment.problem import Problem, Row, Solution, Sums, objective, row_weight
from meshwise.assignment.search.descent import DescentWithin
from meshwise.assignment.search.mixture import Recombiner
from meshwise.intra.limit.judged import Judge, JudgedChoice
from meshwise.intra.limit.least_peak import COST_SHARE, Least, least_peak, lightest
from meshwise.intra.limit.refusal import too_large
from meshwise.memory.peak import Peak
from meshwise.plan.decision import GraphDecision

# Prices that are tried, mixtures of what they found, and descents from the best of these.
_PRICES = 8
_MIXTURES = 5
_DESCENTS = 3
# Between mixtures the limit moves by this factor at least and at most.
_LEAST_WIDER, _WIDER = 1.005, 1.05
# What costs weigh beside bytes where a light plan is looked for.
_LIGHT_SHARE = 1e-2
# Prices change by this power of what a choice weighs in the row, but by no more than the factor.
_STEEPNESS = 12
_MOST_STEP = 3.0
# After so many prices they change half as much; so many that find nothing new are the last.
_SLOWER = 3
_PATIENCE = 2
# If after so many prices all plans need so much more than the limit, or cost so much more than the
# plan of another search, no more are tried.
_EARLY, _HOPELESS = 3, 1.1
# If prices find nothing below so many times the limit, and hardly anything smaller than another
# search did, the plan of least peak is not looked for: so far it never was so much smaller (two
# percent, in a language model on three meshes with 1 and 2 micro-batches).
_FAR, _HARDLY_SMALLER = 1.25, 0.98
# A plan that costs at most so much more than the bound will do.
_NEAR_BOUND = 1e-3
# Shares of the cost beside bytes that are tried to make the smallest plan cheaper, and the largest.
_SHARES = 5
_MOST_SHARE = 100.0
# Enumeration is tried up to this many nodes, partial choices, and operators that judging looks at.
_SMALL_NODES = 24
_MAX_STEPS = 200_000
_MAX_QUESTIONS = 10_000
_QUESTION_WORK = 60_000
# After it gives up, so many neighbours of the best plan are judged at a time, so many times.
_MAX_NEIGHBOURS, _MAX_MOVES = 1_000, 40

# A cost counts as its bound if no more than rounding lies between.
_SLACK = 1e-9


def fit(
    judge: Judge,
    free: JudgedChoice,
    *,
    limit: int,
    below_s: float = math.inf,
    smallest_bytes: float = math.inf,
) -> JudgedChoice:
    """A cheap plan that fits.

    Args:
        judge: What is searched.
        free: The answer without a limit, which does not fit.
        limit: Bytes of one device.
        below_s: A plan of another search costs so much and fits: where prices say that none here
            is cheaper, the search ends.
        smallest_bytes: The smallest plan of other searches has such a peak, which does not fit:
            where plans here come near neither to the limit nor to that, the search ends.

    Raises:
        TooLargeError: no plan was found that fits.
    """
    if sum(float(held.min()) for held in judge.input_bytes()) > limit:
        # Not even the inputs fit.
        raise too_large(limit, least_peak(judge, free).answer.peak, is_proved=True)
    is_small = len(judge.problem.costs) <= _SMALL_NODES
    priced = _Priced(judge, free, limit, below_s)
    found, least = priced.search(), None
    if found is None:
        is_far = not is_small and priced.least_bytes > max(
            _FAR * limit, _HARDLY_SMALLER * smallest_bytes
        )
        if below_s < math.inf or is_far:
            # An error names a plan that is found again within as much memory.
            raise too_large(limit, free.peak, is_proved=False)
        least = least_peak(judge, free)
        if least.answer.num_bytes <= limit:
            found = _cheaper(judge, free, least, limit)
    bound = max(free.solution.bound, 0.0)
    if is_small:
        found, proved = _by_enumeration(judge, found, limit)
        bound = max(bound, proved)
    if found is None:
        assert least is not None
        raise too_large(limit, least.answer.peak, is_proved=bound == math.inf)
    cost = found.solution.cost
    exact = bound >= cost * (1 - _SLACK)
    solution = dataclasses.replace(
        found.solution,
        bound=min(bound, cost),
        status="optimal" if exact else "time limit" if judge.is_late else "bounded",
    )
    return dataclasses.replace(found, solution=solution)


class _Priced:
    """A search with prices on rows: each row is what is live at the peak of a plan that was met."""

    def __init__(self, judge: Judge, free: JudgedChoice, limit: int, below_s: float) -> None:
        self.judge = judge
        self.free = free
        self.limit = limit
        self.below_s = below_s
        # What plans within the rows cost at least, as far as prices say.
        self.about_s = -math.inf
        self.best: JudgedChoice | None = None
        self.rows = [_scaled_row(judge, free, limit)]
        self.prices = [free.solution.cost / free.num_bytes]
        self.met = {free.solution.choice: free}

    @property
    def least_bytes(self) -> int:
        """The peak of the smallest plan that was met."""
        return min(answer.num_bytes for answer in self.met.values())

    def search(self) -> JudgedChoice | None:
        """The best plan that fits among those that were met; None if none was."""
        self._begin()
        idle = 0
        for step in range(_PRICES):
            if self._is_over() or idle == _PATIENCE or (step == _EARLY and self._is_hopeless()):
                break
            known = len(self.met)
            if not self._step(1 / (1 + step / _SLOWER)):
                break
            idle = idle + 1 if len(self.met) == known else 0
        scale = 1.0
        for _ in range(_MIXTURES):
            if self._is_over() or self._is_hopeless():
                break
            scale = self._mix(scale)
        if self.best is not None and not self._is_over():
            self._descend()
        return self.best

    def _is_over(self) -> bool:
        if self.judge.is_late or self.about_s > self.below_s:
            return True
        near = self.free.solution.bound * (1 + _NEAR_BOUND)
        return self.best is not None and self.best.solution.cost <= near

    def _begin(self) -> None:
        """Set the first price: what a byte costs between the free plan and one that is light."""
        (row,) = self.rows
        most, cost = row_weight(row, self.free.solution.choice), self.free.solution.cost
        factor, light = 0.0, self.free.solution.choice
        for _ in range(2):
            light = self.judge.solve_free(priced_problem(self._within_rows(), [1.0], factor))
            if not light:
                return
            more, less = objective(self.judge.problem, light) - cost, most - row_weight(row, light)
            if not (more > 0 and less > 0):
                return
            self.prices = [more / less]
            # Bytes alone do not tell cheap light plans from dear ones.
            factor = _LIGHT_SHARE * less / more
        self._meet(light)

    def _is_hopeless(self) -> bool:
        """Whether nothing comes near to the limit, or to what the other search found."""
        is_dear = self.best is not None and self.best.solution.cost > _HOPELESS * self.below_s
        return is_dear or self.least_bytes > _HOPELESS * self.limit

    def _step(self, power: float) -> bool:
        """Take the cheapest choice at the prices and move them; False if there is none."""
        choice = self.judge.solve_free(priced_problem(self._within_rows(), self.prices))
        if not choice:
            return False
        value = objective(self.judge.problem, choice) + sum(
            p * (row_weight(row, choice) - row.limit)
            for p, row in zip(self.prices, self.rows, strict=True)
        )
        self.about_s = max(self.about_s, value)
        self._meet(choice)
        for k, row in enumerate(self.rows):
            excess = row_weight(row, choice) / max(row.limit, 1.0)
            factor = min(max(excess**_STEEPNESS, 1 / _MOST_STEP), _MOST_STEP)
            self.prices[k] *= factor**power
        return True

    def _within_rows(self) -> Problem:
        return dataclasses.replace(self.judge.problem, rows=tuple(self.rows))

    def _mix(self, scale: float) -> float:
        """Mix parts of all that was met, within the sum of the rows at their prices.

        Args:
            scale: Of the limit.

        Returns:
            The scale to try next.
        """
        row = _sum_of_rows(self.rows, self.prices)
        mixer = Recombiner(dataclasses.replace(self.judge.problem, rows=(row,)))
        choice = mixer.best(list(self.met), row.limit * scale)
        if choice is None:
            return scale * _WIDER
        self._meet(choice)
        part = self.limit / self.met[choice].num_bytes
        if part >= 1:
            return scale * min(max(part, _LEAST_WIDER), _WIDER)
        return scale * max(min(part, 1 / _LEAST_WIDER), 1 / _WIDER)

    def _descend(self) -> None:
        """Change single nodes and pairs of the best plan within the rows."""
        descent = DescentWithin(self._within_rows())
        for _ in range(_DESCENTS):
            assert self.best is not None
            before = self.best
            if not self._meet(descent.improved(before.solution.choice)):
                break
            descent = DescentWithin(self._within_rows())

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


def _sum_of_rows(rows: Sequence[Row], prices: Sequence[float]) -> Row:
    """The sum of rows, each as often as its price says."""
    sums, total = Sums(), max(sum(prices), 1e-300)
    for row, price in zip(rows, prices, strict=True):
        part = price / total
        for u, w in row.nodes:
            sums.add(u, part * w)
        for u, v, w in row.pairs:
            sums.add_pair(u, v, part * w)
    return sums.row(sum(p * row.limit for p, row in zip(prices, rows, strict=True)) / total)


def _scaled_row(judge: Judge, answer: JudgedChoice, limit: int) -> Row:
    """What is live at the peak of a plan, within its part of the limit."""
    row = judge.row_of(answer.peak)
    part = row_weight(row, answer.solution.choice) / answer.num_bytes
    return dataclasses.replace(row, limit=limit * part)


def _is_cheaper(one: JudgedChoice, other: JudgedChoice) -> bool:
    return one.solution.cost < other.solution.cost


def _cheaper(judge: Judge, free: JudgedChoice, least: Least, limit: int) -> JudgedChoice:
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


def _by_enumeration(
    judge: Judge, found: JudgedChoice | None, limit: int
) -> tuple[JudgedChoice | None, float]:
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
        effort=BestFirstEffort(steps=_MAX_STEPS, questions=questions, deadline=judge.deadline),
    )
    best = cheapest.choice
    for _ in range(0 if cheapest.proved or best is None else _MAX_MOVES):
        assert best is not None
        near = None
        if not judge.is_late:
            near = cheaper_neighbour(
                judge.problem, best, fits, questions=min(_MAX_NEIGHBOURS, questions)
            )
        if near is None:
            break
        best = near
    if best is None or best == known:
        return found, cheapest.bound
    cost = objective(judge.problem, best)
    solution = Solution(choice=best, cost=cost, bound=0.0, status="")
    return JudgedChoice(
        solution=solution, decision=judged[best][0], peak=judged[best][1]
    ), cheapest.bound
