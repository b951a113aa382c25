"""A row by Lagrangian relaxation: prices on bytes give bounds and good choices.

For a price y >= 0, min over choices of  cost + y (weight - limit)  is a lower bound of the problem
with the row, and it has no row, so that reductions and dual ascent solve it fast.  The price rises
where the row is broken and falls where it has room.

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
    Problem,
    Sums,
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
    """What pricing the row found.

    Attributes:
        choice: The best choice that satisfies the row; None if none was met.
        cost: Objective of the choice.
        bound: No choice that satisfies the row costs less; inf if there is none.
    """

    choice: tuple[int, ...] | None
    cost: float
    bound: float


def priced_problem(problem: Problem, prices: Sequence[float], cost_factor: float = 1.0) -> Problem:
    """Return the problem without rows, their weights at the given prices in the costs.

    Args:
        problem: The problem.
        prices: Price of a unit of weight of each row.
        cost_factor: Factor of the costs; 0 leaves only what is forbidden of them.
    """

    def scaled(costs: Array) -> Array:
        return costs * cost_factor if cost_factor else np.where(np.isfinite(costs), 0.0, costs)

    sums = Sums()
    for u, costs in enumerate(problem.costs):
        sums.add(u, scaled(costs))
    for pair in problem.pairs:
        sums.add_pair(pair.u, pair.v, scaled(pair.cost))
    for price, row in zip(prices, problem.rows, strict=True):
        if not price:
            continue
        for u, weights in row.nodes:
            sums.add(u, price * weights)
        for u, v, weights in row.pairs:
            sums.add_pair(u, v, price * weights)
    return sums.problem()


def relaxed(problem: Problem) -> tuple[tuple[int, ...], float]:
    """Return a good choice of a problem without rows, and a lower bound."""
    reduction = reduce_problem(problem)
    if reduction.infeasible:
        return (), math.inf
    found = relax(reduction.network, None, passes=_PASSES)
    if found.choice is None:
        return (), found.bound
    return tuple(reduction.expand(found.choice).tolist()), found.bound


class _Search:
    """The search for a price: its bracket, and the best that was met."""

    def __init__(self, problem: Problem, known: tuple[int, ...] | None) -> None:
        (self.row,) = problem.rows
        self.problem = problem
        self._descent = DescentWithin(problem)
        self.best = known
        self.best_cost = objective(problem, known) if known else math.inf
        self.bound = -math.inf
        self.price = 0.0
        self.low, self.high = 0.0, math.inf

    def better(self, choice: tuple[int, ...]) -> None:
        """Improve a choice that satisfies the row and keep it if it is the best."""
        if not is_feasible(self.problem, choice):
            return
        if objective(self.problem, choice) < _NEAR * self.best_cost:
            choice = self._descent.improved(choice)
            if objective(self.problem, choice) < self.best_cost:
                self.best, self.best_cost = choice, objective(self.problem, choice)

    def can_be_met(self) -> bool:
        """Return whether the row can be met; begins with the choice of least weight."""
        light, bound = relaxed(priced_problem(self.problem, [1.0], cost_factor=0.0))
        if bound > self.row.limit * (1 + _SLACK):
            return False
        if self.best and (
            not light or row_weight(self.row, self.best) <= row_weight(self.row, light)
        ):
            light = self.best
        if light:
            self.better(light)
        return True

    def step(self) -> bool:
        """Solve at the current price and move it; False if it has settled."""
        found, value = relaxed(priced_problem(self.problem, [self.price]))
        value -= self.price * self.row.limit
        if value > self.bound:
            self.bound = value
        if not found or self.bound >= self.best_cost * (1 - _SLACK):
            return False
        self.better(found)
        return self._move(row_weight(self.row, found), max(objective(self.problem, found), 1e-30))

    def _move(self, weight: float, unit: float) -> bool:
        if weight > self.row.limit:
            self.low = max(self.low, self.price)
            if self.high <= self.low * _CLOSE:
                # Choices are good ones only, so that the bracket need not hold.
                self.high = math.inf
        elif self.price > 0:
            self.high = min(self.high, self.price)
        else:
            return False
        if self.high < math.inf:
            if self.high <= self.low * _CLOSE:
                return False
            self.price = math.sqrt(max(self.low, self.high / 64) * self.high)
        else:
            self.price = max(self.low * 3, 0.1 * unit / max(self.row.limit, 1e-30))
        return True


def price_row(problem: Problem, known: tuple[int, ...] | None) -> Priced:
    """Search a price of the row.

    Args:
        problem: With one row.
        known: A choice that satisfies the row; None if none is known.

    Returns:
        The best choice that was met, and a bound.
    """
    search = _Search(problem, known)
    if not search.can_be_met():
        return Priced(choice=None, cost=math.inf, bound=math.inf)
    for _ in range(_STEPS):
        if not search.step():
            break
    return Priced(
        choice=search.best, cost=search.best_cost, bound=min(search.bound, search.best_cost)
    )
