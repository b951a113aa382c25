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

from meshwise.assignment.bounds.dual_kernels import (
    decode,
    excess_of_choices,
    pull_all,
    sum_of_minima,
    sweep,
)
from meshwise.assignment.flat_problem import Flat, Ints
from meshwise.assignment.problem import Array, Problem, is_feasible, objective
from meshwise.assignment.search.descent import improved
from meshwise.kernels.compiler import BACKWARD, FORWARD

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

    def __init__(self, flat: Flat) -> None:
        """Begin with costs as they are.

        Args:
            flat: With u < v in each pair.
        """
        large = 4.0 * (_largest(flat.cost, flat.node_at) + _largest(flat.matrix, flat.pair_at))
        self._flat = flat._replace(
            cost=np.where(np.isfinite(flat.cost), flat.cost, large + 1e-30),
            matrix=np.where(np.isfinite(flat.matrix), flat.matrix, large + 1e-30),
        )
        self._scratch = np.zeros(flat.most_choices())

    def raise_bound(self) -> None:
        """Move costs forward over all nodes, and back."""
        sweep(FORWARD, self._flat, self._scratch)
        sweep(BACKWARD, self._flat, self._scratch)

    def pull(self) -> None:
        """Move to each node, in order, what its edges cost at least for each of its choices."""
        pull_all(self._flat, self._scratch)

    def bound(self) -> float:
        """Sum of the minima: no choice of all nodes costs less."""
        return sum_of_minima(self._flat)

    def decode(self) -> Ints:
        """Choices in order, each the best given the ones before."""
        choice = np.zeros(len(self._flat.node_at) - 1, np.int64)
        decode(self._flat, self._scratch, choice)
        return choice

    def excess(self) -> list[Array]:
        """For each node by how much each of its choices lifts the bound."""
        excess = np.zeros(len(self._flat.cost))
        excess_of_choices(self._flat, excess)
        return np.split(excess, self._flat.node_at[1:-1])

    @property
    def nodes(self) -> list[Array]:
        """Costs of each node as they are now."""
        return np.split(self._flat.cost, self._flat.node_at[1:-1])

    @property
    def pairs(self) -> list[Array]:
        """Costs of each pair as they are now, (u's choice, v's choice)."""
        flat, sizes = self._flat, np.diff(self._flat.node_at)
        return [
            flat.matrix[flat.pair_at[e] : flat.pair_at[e + 1]].reshape(sizes[u], sizes[v])
            for e, (u, v) in enumerate(zip(flat.u, flat.v, strict=True))
        ]


def _largest(values: Array, starts: Ints) -> float:
    """Sum of the largest finite value of each part, 0 where there is none."""
    if len(starts) < 2:
        return 0.0
    finite = np.where(np.isfinite(values), values, -np.inf)
    largest = np.maximum.reduceat(finite, starts[:-1])
    return float(np.where(np.isfinite(largest), largest, 0.0).sum())


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
    flat = Flat.of(problem)
    costs = MovedCosts(flat)
    best = choice
    best_cost = objective(problem, best) if best is not None else np.inf
    bound = -np.inf
    for number in range(passes):
        costs.raise_bound()
        before, bound = bound, max(bound, costs.bound())
        stalled = bound - before <= _STALL * abs(bound)
        if number % _READ_EVERY == 0 or stalled or number == passes - 1:
            found = improved(flat, costs.decode())
            cost = objective(problem, found)
            if cost < best_cost and is_feasible(problem, found):
                best, best_cost = found, cost
        if stalled or bound >= best_cost * (1 - _SLACK):
            break
    # What was pulled makes nodes dearer and edges cheaper; the excess of a choice is its own.
    costs.pull()
    total = costs.bound()
    bound = max(bound, total)
    limit = (best_cost if cost_limit is None else cost_limit) * (1 + _SLACK)
    keep = tuple(total + excess <= limit for excess in costs.excess())
    if best is not None:
        for mask, chosen in zip(keep, best, strict=True):
            mask[chosen] = True
    return Ascent(bound=min(bound, best_cost), choice=best, cost=best_cost, keep=keep)
