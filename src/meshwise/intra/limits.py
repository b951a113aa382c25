"""Rows by Lagrangian relaxation: prices on bytes give bounds, good choices and exclusions.

For prices y >= 0, min over choices of  cost + sum_t y[t] (weight[t] - limit[t])  is a lower bound
of the problem with rows, and it has no rows, so that reductions and dual ascent solve it fast.
Prices rise where a row is broken and fall where it has room.  With the best prices, a choice
whose excess lifts the bound above a known answer is in no better one.

Source: Everett's generalised Lagrange multipliers (1963).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.intra.descent import improve_within
from meshwise.intra.dual import ascend
from meshwise.intra.problem import Array, PairCost, Problem, is_feasible, objective, row_weight
from meshwise.intra.reduce import reduce_problem

_STEPS = 14
_PASSES = 25
# Prices are bracketed until they are this close.
_CLOSE = 1.02
_SLACK = 1e-9
# A choice that costs at most this much more than the best is worth a local search.
_NEAR = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What pricing the rows found.

    Attributes:
        choice: The best choice that satisfies the rows; None if none was met.
        cost: Its objective.
        bound: No choice that satisfies the rows costs less; inf if there is none.
        nearest: The choice that comes nearest to the rows.
        keep: Choices that may be in a better answer.
    """

    choice: tuple[int, ...] | None
    cost: float
    bound: float
    nearest: tuple[int, ...]
    keep: tuple[NDArray[np.bool_], ...]


def priced_problem(problem: Problem, prices: Sequence[float], cost_factor: float = 1.0) -> Problem:
    """The problem without rows, their weights at the given prices in the costs."""
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
    """A good choice of a problem without rows, and a lower bound."""
    reduction = reduce_problem(problem)
    if reduction.infeasible:
        return (), math.inf
    if not reduction.problem.costs:
        return reduction.expand(()), reduction.constant
    ascent = ascend(reduction.problem, None, passes=_PASSES)
    if ascent.choice is None:
        return (), ascent.bound + reduction.constant
    return reduction.expand(ascent.choice), ascent.bound + reduction.constant


def _excess(problem: Problem, choice: Sequence[int]) -> float:
    """By what factor the worst row is broken; at most 1 if none is."""
    return max(row_weight(row, choice) / max(row.limit, 1e-30) for row in problem.rows)


def price_rows(problem: Problem, known: tuple[int, ...] | None) -> Priced:
    """Search prices of the rows.

    Args:
        problem: With at least one row.
        known: A choice that satisfies the rows.
    """
    everything = tuple(np.ones(len(c), dtype=bool) for c in problem.costs)
    nearest: tuple[int, ...] = known or ()
    for number, row in enumerate(problem.rows):
        alone = [1.0 if k == number else 0.0 for k in range(len(problem.rows))]
        least, least_bound = relaxed(priced_problem(problem, alone, cost_factor=0.0))
        if least and (not nearest or _excess(problem, least) < _excess(problem, nearest)):
            nearest = least
        if least_bound > row.limit * (1 + _SLACK):
            return Priced(
                choice=None, cost=math.inf, bound=math.inf, nearest=nearest, keep=everything
            )
    best, best_cost = known, objective(problem, known) if known else math.inf
    if nearest and is_feasible(problem, nearest):
        better = improve_within(problem, nearest)
        if objective(problem, better) < best_cost:
            best, best_cost = better, objective(problem, better)
    count = len(problem.rows)
    low, high, prices = [0.0] * count, [math.inf] * count, [0.0] * count
    bound, best_prices = -math.inf, list(prices)
    for _ in range(_STEPS):
        found, value = relaxed(priced_problem(problem, prices))
        value -= sum(p * row.limit for p, row in zip(prices, problem.rows, strict=True))
        if value > bound:
            bound, best_prices = value, list(prices)
        if not found:
            break
        weights = [row_weight(row, found) for row in problem.rows]
        if _excess(problem, found) < _excess(problem, nearest or found):
            nearest = found
        if is_feasible(problem, found) and objective(problem, found) < _NEAR * best_cost:
            found = improve_within(problem, found)
            if objective(problem, found) < best_cost:
                best, best_cost = found, objective(problem, found)
        unit = max(objective(problem, found), 1e-30)
        moved = False
        for k, row in enumerate(problem.rows):
            if weights[k] > row.limit:
                low[k] = max(low[k], prices[k])
                if high[k] <= low[k] * _CLOSE:
                    high[k] = math.inf
            elif prices[k] > 0:
                high[k] = min(high[k], prices[k])
            else:
                continue
            if high[k] < math.inf:
                if high[k] <= low[k] * _CLOSE:
                    continue
                prices[k] = math.sqrt(max(low[k], high[k] / 64) * high[k])
            else:
                prices[k] = max(low[k] * 3, 0.1 * unit / row.limit)
            moved = True
        if not moved or bound >= best_cost * (1 - _SLACK):
            break
    keep = everything
    if best is not None:
        keep = _needed(problem, best_prices, best, best_cost)
    return Priced(
        choice=best, cost=best_cost, bound=min(bound, best_cost), nearest=nearest, keep=keep
    )


def _needed(
    problem: Problem, prices: Sequence[float], best: tuple[int, ...], best_cost: float
) -> tuple[NDArray[np.bool_], ...]:
    """Choices that may be in an answer cheaper than the known one."""
    priced = priced_problem(problem, prices)
    credit = sum(p * row.limit for p, row in zip(prices, problem.rows, strict=True))
    ascent = ascend(priced, None, passes=_PASSES, cost_limit=best_cost + credit)
    return tuple(
        mask | (np.arange(len(mask)) == i) for mask, i in zip(ascent.keep, best, strict=True)
    )
