"""Dual ascent: a lower bound, good choices, and proof that many choices are not needed.

Costs are moved between nodes and edges without changing the cost of any choice of all nodes (a
reparametrisation) such that the sum of the minima of all nodes and edges rises; that sum is a
lower bound.  A choice whose own excess over its node's minimum lifts the bound above the cost of
a known answer is in no better answer, and goes.

Source: Kolmogorov's sequential tree-reweighted message passing (TRW-S, 2006), in the form that
keeps the reparametrised costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.intra.descent import improve
from meshwise.intra.problem import Array, Problem, is_feasible, objective

# A choice is dropped only if it is worse than the known answer by more than rounding.
_SLACK = 1e-9
# A rise of the bound below this share of it counts as none.
_STALL = 1e-6
# A choice is read off after so many passes.
_READ_EVERY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ascent:
    """What dual ascent found.

    Attributes:
        bound: No choice costs less.
        choice: The best choice that satisfies the rows; None if none was met.
        cost: Its objective.
        keep: For each node a mask of the choices that may be in a better answer.
    """

    bound: float
    choice: tuple[int, ...] | None
    cost: float
    keep: tuple[NDArray[np.bool_], ...]


class MovedCosts:
    """Reparametrised costs; infinite ones are made large, since they take part in sums."""

    def __init__(self, problem: Problem) -> None:
        total = sum(_largest(c) for c in problem.costs)
        total += sum(_largest(p.cost) for p in problem.pairs)
        large = 4.0 * total + 1e-30
        self.nodes = [np.where(np.isfinite(c), c, large) for c in problem.costs]
        self.edges = [np.where(np.isfinite(p.cost), p.cost, large) for p in problem.pairs]
        self.ends = [(p.u, p.v) for p in problem.pairs]
        self.around: list[list[int]] = [[] for _ in self.nodes]
        for e, (u, v) in enumerate(self.ends):
            self.around[u].append(e)
            self.around[v].append(e)

    def pull(self, u: int) -> None:
        """Move to node `u` what its edges cost at least for each of its choices."""
        total = self.nodes[u]
        for e in self.around[u]:
            matrix = self.edges[e]
            if self.ends[e][0] == u:
                least = matrix.min(axis=1)
                matrix -= least[:, None]
            else:
                least = matrix.min(axis=0)
                matrix -= least[None, :]
            total = total + least
        self.nodes[u] = total

    def push(self, u: int, *, forward: bool) -> None:
        """Spread the cost of node `u` over its edges to the nodes that come after it."""
        ahead = [e for e in self.around[u] if (self.ends[e][0] == u) == forward]
        if not ahead:
            return
        share = self.nodes[u] / max(len(ahead), len(self.around[u]) - len(ahead))
        for e in ahead:
            if self.ends[e][0] == u:
                self.edges[e] += share[:, None]
            else:
                self.edges[e] += share[None, :]
        self.nodes[u] = self.nodes[u] - share * len(ahead)

    def bound(self) -> float:
        """Sum of the minima: no choice of all nodes costs less."""
        total = sum(float(c.min()) for c in self.nodes)
        return total + sum(float(m.min()) for m in self.edges)

    def decode(self) -> list[int]:
        """Choices in order, each the best given the ones before."""
        choice = [0] * len(self.nodes)
        for u in range(len(self.nodes)):
            total = self.nodes[u]
            for e in self.around[u]:
                a, b = self.ends[e]
                if b == u:
                    total = total + self.edges[e][choice[a]]
            choice[u] = int(np.argmin(total))
        return choice


def _largest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


def ascend(
    problem: Problem,
    choice: tuple[int, ...] | None,
    *,
    passes: int,
    cost_limit: float | None = None,
) -> Ascent:
    """Raise the bound by passes forward and backward over the nodes.

    Args:
        problem: Pairs with u < v, each at most once.
        choice: A known choice that satisfies the rows.
        passes: At most so many.
        cost_limit: Choices that lead to more than this go; None for the cost of the best.
    """
    costs = MovedCosts(problem)
    order = range(len(costs.nodes))
    best = choice
    best_cost = objective(problem, best) if best is not None else np.inf
    bound = -np.inf
    for number in range(passes):
        for u in order:
            costs.pull(u)
            costs.push(u, forward=True)
        for u in reversed(order):
            costs.pull(u)
            costs.push(u, forward=False)
        before, bound = bound, max(bound, costs.bound())
        stalled = bound - before <= _STALL * abs(bound)
        if number % _READ_EVERY == 0 or stalled or number == passes - 1:
            found = improve(problem, tuple(costs.decode()))
            cost = objective(problem, found)
            if cost < best_cost and is_feasible(problem, found):
                best, best_cost = found, cost
        if stalled or bound >= best_cost * (1 - _SLACK):
            break
    for u in order:
        costs.pull(u)
    # What was pulled makes nodes dearer and edges cheaper; the excess of a choice is its own.
    total = sum(float(c.min()) for c in costs.nodes) + sum(float(m.min()) for m in costs.edges)
    bound = max(bound, total)
    limit = (best_cost if cost_limit is None else cost_limit) * (1 + _SLACK)
    keep: list[NDArray[np.bool_]] = []
    for u in order:
        excess = costs.nodes[u] - costs.nodes[u].min()
        for e in costs.around[u]:
            matrix = costs.edges[e]
            least = matrix.min(axis=1) if costs.ends[e][0] == u else matrix.min(axis=0)
            excess = excess + (least - matrix.min())
        mask = total + excess <= limit
        if best is not None:
            mask[best[u]] = True
        keep.append(mask)
    return Ascent(bound=min(bound, best_cost), choice=best, cost=best_cost, keep=tuple(keep))
