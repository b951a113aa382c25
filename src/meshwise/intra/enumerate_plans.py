"""All choices cheaper than a known one, cheapest branches first, for small problems.

Whether a plan fits is asked of a function, so that it may be anything; dual ascent gives the
bounds that keep the search small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshwise.intra.dual import MovedCosts
from meshwise.intra.problem import Array, Problem, objective

_PASSES = 80
_SLACK = 1e-9


class SearchTooLargeError(Exception):
    """More steps than allowed; internal, never seen by a user."""


def cheapest_that_fits(
    problem: Problem,
    known: tuple[int, ...] | None,
    fits: Callable[[tuple[int, ...]], bool],
    *,
    held: Sequence[Array],
    limit: float,
    max_steps: int,
    max_leaves: int,
) -> tuple[int, ...] | None:
    """The cheapest choice for which `fits` holds; `known` if none is cheaper.

    Args:
        problem: Without rows; pairs with u < v, each at most once.
        known: A choice that fits.
        fits: Whether a choice fits.
        held: For each node and choice what certainly counts against `limit`.
        limit: No choice fits that holds more.
        max_steps: Largest number of partial choices to look at.
        max_leaves: Largest number of choices to ask about.

    Raises:
        SearchTooLargeError: the search was not finished.
    """
    costs = MovedCosts(problem)
    count = len(costs.nodes)
    for _ in range(_PASSES):
        for u in range(count):
            costs.pull(u)
            costs.push(u, forward=True)
        for u in reversed(range(count)):
            costs.pull(u)
            costs.push(u, forward=False)
    bound = costs.bound()
    nodes = [c - c.min() for c in costs.nodes]
    edges = [m - m.min() for m in costs.edges]
    best = known
    best_cost = objective(problem, known) if known is not None else np.inf
    choice = [0] * count
    steps = leaves = 0
    at_least = [0.0] * (count + 1)
    for u in reversed(range(count)):
        at_least[u] = at_least[u + 1] + float(held[u].min())

    def visit(u: int, excess: float, holds: float) -> None:
        nonlocal best, best_cost, steps, leaves
        steps += 1
        if steps > max_steps or leaves > max_leaves:
            raise SearchTooLargeError
        if u == count:
            found = tuple(choice)
            cost = objective(problem, found)
            if cost < best_cost * (1 - _SLACK):
                leaves += 1
                if fits(found):
                    best, best_cost = found, cost
            return
        total = nodes[u] + excess
        for e in costs.around[u]:
            a, b = costs.ends[e]
            if b == u:
                total = total + edges[e][choice[a]]
        for i in np.argsort(total, kind="stable").tolist():
            if bound + total[i] >= best_cost * (1 - _SLACK) or not np.isfinite(total[i]):
                return
            more = holds + float(held[u][i])
            if more + at_least[u + 1] <= limit:
                choice[u] = i
                visit(u + 1, float(total[i]), more)

    visit(0, 0.0, 0.0)
    return best
