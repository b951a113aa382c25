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
    search = _Search(problem, known, fits, held, limit, max_steps, max_leaves)
    search.visit(0, 0.0, 0.0)
    return search.best


class _Search:
    """A depth-first search over moved costs; `excess` is what a branch adds to the bound."""

    def __init__(
        self,
        problem: Problem,
        known: tuple[int, ...] | None,
        fits: Callable[[tuple[int, ...]], bool],
        held: Sequence[Array],
        limit: float,
        max_steps: int,
        max_leaves: int,
    ) -> None:
        self.problem, self.fits, self.held, self.limit = problem, fits, held, limit
        self.steps, self.leaves = max_steps, max_leaves
        costs = MovedCosts(problem)
        count = len(costs.nodes)
        for _ in range(_PASSES):
            for u in range(count):
                costs.pull(u)
                costs.push(u, forward=True)
            for u in reversed(range(count)):
                costs.pull(u)
                costs.push(u, forward=False)
        self.bound = costs.bound()
        self.nodes = [c - c.min() for c in costs.nodes]
        self.before = [
            [
                (costs.ends[e][0], costs.edges[e] - costs.edges[e].min())
                for e in costs.around[u]
                if costs.ends[e][1] == u
            ]
            for u in range(count)
        ]
        self.at_least = [0.0] * (count + 1)
        for u in reversed(range(count)):
            self.at_least[u] = self.at_least[u + 1] + float(held[u].min())
        self.choice = [0] * count
        self.best = known
        self.best_cost = objective(problem, known) if known is not None else np.inf

    def leaf(self) -> None:
        """Ask about a whole choice if it is cheaper than the best."""
        found = tuple(self.choice)
        cost = objective(self.problem, found)
        if cost < self.best_cost * (1 - _SLACK):
            self.leaves -= 1
            if self.fits(found):
                self.best, self.best_cost = found, cost

    def visit(self, u: int, excess: float, holds: float) -> None:
        """Try the choices of node `u`, cheapest first."""
        self.steps -= 1
        if self.steps < 0 or self.leaves < 0:
            raise SearchTooLargeError
        if u == len(self.nodes):
            self.leaf()
            return
        total = self.nodes[u] + excess
        for v, matrix in self.before[u]:
            total = total + matrix[self.choice[v]]
        for i in np.argsort(total, kind="stable").tolist():
            if self.bound + total[i] >= self.best_cost * (1 - _SLACK):
                return
            more = holds + float(self.held[u][i])
            if more + self.at_least[u + 1] <= self.limit:
                self.choice[u] = i
                self.visit(u + 1, float(total[i]), more)
