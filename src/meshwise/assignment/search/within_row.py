"""The cheapest choice within one row of a problem, with a bounded amount of work.

Prices of a byte give the lower convex hull of (weight, cost) around the limit, each point with a
choice: the line through two points gives the price that finds a point below it, if there is one.
What no price reaches lies between the points: mixtures of their choices (`recombine`), then a
program in which each node takes what one of them took.

Source: Everett's generalised Lagrange multipliers (1963).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from meshwise.assignment.bounds.row_prices import priced_problem
from meshwise.assignment.problem import Array, Problem, Solution, objective, row_weight
from meshwise.assignment.search.mixture import Recombiner
from meshwise.assignment.solve import solve
from meshwise.assignment.solver_time import SolverTime

# Prices that are tried at most, and others about the best one, in parts of it.
_MOST_PRICES = 14
_BESIDE = (0.5, 0.8, 1.25, 2.0)
_NEAR = 1.1
# Choices whose parts one program mixes while that is enough.
_MOST_MIXED = 8
# A choice that costs so much more than the bound, as a part of it, will do.
_CLOSE = 5e-3
# Above this part of the bound one program mixes all choices, however long it takes.
_FAR = 1e-2
# A price whose choice is below the line by less than this part of it has found no point.
_BELOW = 1e-6

# Gives a choice of little cost + price * weight, and a bound of it; None if there is no choice.
AtPrice: TypeAlias = Callable[[float], tuple[tuple[int, ...], float] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEffort:
    """How much may be done.

    Attributes:
        time: What all programs together may take.
        seed: Seed of the solver.
    """

    time: SolverTime = field(default_factory=SolverTime)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A choice, what it costs and weighs."""

    weight: float
    cost: float
    choice: tuple[int, ...]


class Within:
    """A problem with one row, for several limits; what is found for one serves the others."""

    def __init__(
        self,
        problem: Problem,
        effort: RowEffort | None = None,
        like: Within | None = None,
        at_price: AtPrice | None = None,
    ) -> None:
        """Find the cheapest choice without the row, and the lightest.

        Args:
            problem: With exactly one row.
            effort: How much may be done.
            like: The same problem with other weights: its choices serve here too.
            at_price: Function that finds a choice at a price, in place of the solver.
        """
        (self.row,) = problem.rows
        self.problem = problem
        self.effort = effort or RowEffort()
        self._at_price = at_price or self._solved_at
        self._mixer = Recombiner(problem)
        self._points: dict[tuple[int, ...], _Point] = {}
        # Bounds of cost + price * weight.
        self._bounds: dict[float, float] = {}
        self._is_lightest_known = like is None
        if like is not None and like.is_possible:
            self.is_possible = True
            self._bounds[0.0] = like._bounds[0.0]
            self._learn(like._points)
            return
        self.is_possible = self._priced(0.0) is not None
        if self.is_possible:
            self._priced(1.0, cost_factor=0.0)

    def _learn(self, choices: Iterable[tuple[int, ...]]) -> None:
        for choice in choices:
            cost = objective(self.problem, choice)
            if math.isfinite(cost):
                weight = row_weight(self.row, choice)
                self._points[choice] = _Point(weight=weight, cost=cost, choice=choice)

    @property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """Return all choices that were found."""
        return tuple(self._points)

    def bound(self, limit: float) -> float:
        """Return a cost below which no choice weighs at most `limit`."""
        return max((b - p * limit for p, b in self._bounds.items()), default=math.inf)

    def cheapest(self, limit: float) -> Solution:
        """Return the cheapest choice that weighs at most `limit`, or one that is close to it.

        Returns:
            Its status is "optimal" where no row is needed, "bounded", or "infeasible" where
            nothing was found that fits.
        """
        if not self.is_possible:
            return _nothing()
        price = self._edge(limit)
        best = self._mixed(limit, None)
        if not self._is_close(best, limit):
            best = self._restricted(limit, best, price)
        if not self._is_close(best, limit) and self._look_beside(price):
            best = self._restricted(limit, self._mixed(limit, best), price)
        if not self._is_close(best, limit, _FAR):
            best = self._restricted(limit, best, price, len(self._points))
        if best is None and not self._is_lightest_known:
            self._is_lightest_known = True
            self._priced(1.0, cost_factor=0.0)
            return self.cheapest(limit)
        if best is None:
            return _nothing()
        cost, bound = self._points[best].cost, self.bound(limit)
        is_free = bound == self._bounds[0.0] and cost <= bound
        return Solution(
            choice=best,
            cost=cost,
            bound=min(bound, cost),
            status="optimal" if is_free else "bounded",
        )

    def _is_close(self, best: tuple[int, ...] | None, limit: float, close: float = _CLOSE) -> bool:
        if best is None:
            return False
        bound = self.bound(limit)
        return self._points[best].cost - bound <= close * abs(bound)

    def _priced(self, price: float, cost_factor: float = 1.0) -> _Point | None:
        """Return the choice of least cost + price * weight; None if there is none."""
        found = self._at_price(price) if cost_factor else self._solved_at(price, cost_factor)
        if found is None:
            return None
        choice, bound = found
        if cost_factor:
            self._bounds[price] = max(bound, self._bounds.get(price, -math.inf))
        self._learn([choice])
        return self._points.get(choice)

    def _solved_at(
        self, price: float, cost_factor: float = 1.0
    ) -> tuple[tuple[int, ...], float] | None:
        found = self._solved(priced_problem(self.problem, [price], cost_factor), None)
        return (found.choice, found.bound) if found.choice else None

    def _solved(self, problem: Problem, known: tuple[int, ...] | None) -> Solution:
        with self.effort.time.used() as left_s:
            return solve(
                problem,
                incumbents=[] if known is None else [known],
                time_limit_s=left_s,
                seed=self.effort.seed,
                exact=False,
            )

    def _edge(self, limit: float) -> float:
        """Find the edge of the hull over a limit; its price, 0 if there is none."""
        price = 0.0
        for _ in range(_MOST_PRICES):
            ends = edge_over([(p.weight, p.cost) for p in self._points.values()], limit)
            if ends is None:
                break
            (less, more), (weight, cost) = ends
            price = (more - cost) / (weight - less)
            if price in self._bounds:
                break
            found, line = self._priced(price), cost + price * weight
            if found is None or found.cost + price * found.weight >= line - _BELOW * abs(line):
                break
        return price

    def _look_beside(self, price: float) -> bool:
        """Try prices about a price that nothing near was tried at; whether there was one."""
        new = [
            p
            for p in (factor * price for factor in _BESIDE)
            if p and not any(p / _NEAR <= tried <= p * _NEAR for tried in self._bounds)
        ]
        for p in new:
            self._priced(p)
        return bool(new)

    def _mixed(self, limit: float, best: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Return the best mixture of all that was found."""
        found = self._mixer.best([*([] if best is None else [best]), *self._points], limit)
        if found is not None:
            self._learn([found])
        return found

    def _restricted(
        self,
        limit: float,
        best: tuple[int, ...] | None,
        price: float,
        most: int = _MOST_MIXED,
    ) -> tuple[int, ...] | None:
        """Return the best choice in which each node takes what some good choice gave it."""
        good = sorted(self._points.values(), key=lambda p: (p.cost + price * p.weight, p.weight))
        choices = [*([] if best is None else [best]), *(p.choice for p in good[:most])]
        costs: list[Array] = []
        for n, cost in enumerate(self.problem.costs):
            some = np.full(len(cost), np.inf)
            places = sorted({choice[n] for choice in choices})
            some[places] = cost[places]
            costs.append(some)
        rows = (replace(self.row, limit=limit),)
        found = self._solved(replace(self.problem, costs=tuple(costs), rows=rows), best)
        if not found.choice:
            return best
        self._learn([found.choice])
        return found.choice


def edge_over(
    points: Sequence[tuple[float, float]], limit: float
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return the edge of the lower convex hull of (weight, cost) that a limit of weight lies on.

    Args:
        points: Weight and cost.
        limit: Limit of the weight.

    Returns:
        Its lighter end, which fits, and its heavier one, which does not and costs less; None if
        all fit or none does, or if none that does not fit costs less.
    """
    hull: list[tuple[float, float]] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], point):
            hull.pop()
        if hull and hull[-1][0] == point[0]:
            hull.pop()
        hull.append(point)
    for light, heavy in itertools.pairwise(hull):
        if light[0] <= limit < heavy[0]:
            return light, heavy
    return None


def _is_above(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Return whether b lies on the line from a to c, or above it."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def _nothing() -> Solution:
    return Solution(choice=(), cost=math.inf, bound=math.inf, status="infeasible")
