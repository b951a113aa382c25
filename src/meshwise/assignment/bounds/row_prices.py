"""Rows by Lagrangian relaxation: prices on bytes give bounds and good choices.

For prices y >= 0, min over choices of  cost + sum_t y[t] (weight[t] - limit[t])  is a lower bound
of the problem with rows, and it has no rows, so that reductions and dual ascent solve it fast.
Prices rise where a row is broken and fall where it has room.

Source: Everett's generalised Lagrange multipliers (1963).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.assignment.bounds.relaxation import relax
from meshwise.assignment.problem import (
    Array,
    PairCost,
    Problem,
    Row,
    is_feasible,
    objective,
    row_weight,
)
from meshwise.assignment.reductions.reduction import reduce_problem
from meshwise.assignment.search.descent import DescentWithin

_STEPS = 12
_PASSES = 12
# Prices are bracketed until they are this close.
_CLOSE = 1.05
_SLACK = 1e-9
# A choice that costs at most this much more than the best is worth a local search.
_NEAR = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What pricing the rows found.

    Attributes:
        choice: The best choice that satisfies the rows; None if none was met.
        cost: Objective of the choice.
        bound: No choice that satisfies the rows costs less; inf if there is none.
        nearest: The choice that comes nearest to the rows.
    """

    choice: tuple[int, ...] | None
    cost: float
    bound: float
    nearest: tuple[int, ...]


def priced_problem(problem: Problem, prices: Sequence[float], cost_factor: float = 1.0) -> Problem:
    """Return the problem without rows, their weights at the given prices in the costs.

    Args:
        problem: The problem.
        prices: Price of a unit of weight of each row.
        cost_factor: Factor of the costs; 0 leaves only what is forbidden of them.
    """
    costs: list[Array] = [
        c * cost_factor if cost_factor else np.where(np.isfinite(c), 0.0, c) for c in problem.costs
    ]
    pairs: dict[tuple[int, int], Array] = {
        (p.u, p.v): p.cost * cost_factor
        if cost_factor
        else np.where(np.isfinite(p.cost), 0.0, p.cost)
        for p in problem.pairs
    }
    for price, row in zip(prices, problem.rows, strict=True):
        if not price:
            continue
        for u, weights in row.nodes:
            costs[u] = costs[u] + price * weights
        for u, v, weights in row.pairs:
            more = price * weights
            pairs[u, v] = pairs[u, v] + more if (u, v) in pairs else more
    return Problem(
        costs=tuple(costs),
        pairs=tuple(PairCost(u=u, v=v, cost=m) for (u, v), m in sorted(pairs.items())),
    )


def relaxed(problem: Problem) -> tuple[tuple[int, ...], float]:
    """Return a good choice of a problem without rows, and a lower bound."""
    reduction = reduce_problem(problem)
    if reduction.infeasible:
        return (), math.inf
    found = relax(reduction.network, None, passes=_PASSES)
    if found.choice is None:
        return (), found.bound
    return tuple(reduction.expand(found.choice).tolist()), found.bound


def _excess(problem: Problem, choice: Sequence[int]) -> float:
    """Return by what factor the worst row is broken; at most 1 if none is."""
    return max(row_weight(row, choice) / max(row.limit, 1e-30) for row in problem.rows)


class _Prices:
    """The search for prices: one bracket a row, and the best that was met."""

    def __init__(self, problem: Problem, known: tuple[int, ...] | None) -> None:
        self.problem = problem
        self._descent = DescentWithin(problem)
        self.best = known
        self.best_cost = objective(problem, known) if known else math.inf
        self.nearest: tuple[int, ...] = known or ()
        self.bound = -math.inf
        self.prices = [0.0] * len(problem.rows)
        self.low = [0.0] * len(problem.rows)
        self.high = [math.inf] * len(problem.rows)

    def near(self, choice: tuple[int, ...]) -> None:
        """Keep the choice that breaks the rows least."""
        if not self.nearest or _excess(self.problem, choice) < _excess(self.problem, self.nearest):
            self.nearest = choice

    def better(self, choice: tuple[int, ...]) -> None:
        """Improve a choice that satisfies the rows and keep it if it is the best."""
        if not is_feasible(self.problem, choice):
            return
        if objective(self.problem, choice) < _NEAR * self.best_cost:
            choice = self._descent.improved(choice)
            if objective(self.problem, choice) < self.best_cost:
                self.best, self.best_cost = choice, objective(self.problem, choice)

    def can_be_met(self) -> bool:
        """Return whether each row alone can be met; looks at the choices of least weight."""
        for number, row in enumerate(self.problem.rows):
            alone = [1.0 if k == number else 0.0 for k in range(len(self.problem.rows))]
            least, bound = relaxed(priced_problem(self.problem, alone, cost_factor=0.0))
            if least:
                self.near(least)
            if bound > row.limit * (1 + _SLACK):
                return False
        if self.nearest:
            self.better(self.nearest)
        return True

    def step(self) -> bool:
        """Solve at the current prices and move them; False if they have settled."""
        rows = self.problem.rows
        found, value = relaxed(priced_problem(self.problem, self.prices))
        value -= sum(p * row.limit for p, row in zip(self.prices, rows, strict=True))
        if value > self.bound:
            self.bound = value
        if not found or self.bound >= self.best_cost * (1 - _SLACK):
            return False
        self.near(found)
        self.better(found)
        unit = max(objective(self.problem, found), 1e-30)
        return any([self._move(k, row, row_weight(row, found), unit) for k, row in enumerate(rows)])

    def _move(self, k: int, row: Row, weight: float, unit: float) -> bool:
        if weight > row.limit:
            self.low[k] = max(self.low[k], self.prices[k])
            if self.high[k] <= self.low[k] * _CLOSE:
                # Other prices moved; the bracket no longer holds.
                self.high[k] = math.inf
        elif self.prices[k] > 0:
            self.high[k] = min(self.high[k], self.prices[k])
        else:
            return False
        if self.high[k] < math.inf:
            if self.high[k] <= self.low[k] * _CLOSE:
                return False
            self.prices[k] = math.sqrt(max(self.low[k], self.high[k] / 64) * self.high[k])
        else:
            self.prices[k] = max(self.low[k] * 3, 0.1 * unit / max(row.limit, 1e-30))
        return True


def price_rows(problem: Problem, known: tuple[int, ...] | None) -> Priced:
    """Search prices of the rows.

    Args:
        problem: With at least one row.
        known: A choice that satisfies the rows; None if none is known.

    Returns:
        The best choice that was met, and a bound.
    """
    search = _Prices(problem, known)
    if not search.can_be_met():
        return Priced(choice=None, cost=math.inf, bound=math.inf, nearest=search.nearest)
    for _ in range(_STEPS):
        if not search.step():
            break
    return Priced(
        choice=search.best,
        cost=search.best_cost,
        bound=min(search.bound, search.best_cost),
        nearest=search.nearest,
    )
