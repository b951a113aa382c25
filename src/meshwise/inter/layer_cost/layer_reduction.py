"""What is left to decide of a layer once all that is certain, except its cuts, is decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.problem import Problem
from meshwise.assignment.reductions.problem_reduction import reduce_problem
from meshwise.inter.layer_cost.state_bounds import StateBounds

Array = NDArray[np.float64]

# By what part of its bound a choice may be dearer to be worth a look.
_TIGHT = 2e-6


class ReducedLayer:
    """A problem without what can be decided ahead, except the states of its cuts."""

    def __init__(self, problem: Problem, nodes: tuple[int, int]) -> None:
        """Reduce it.

        Args:
            problem: Without rows.
            nodes: Whose choices are the states that enter and leave; -1 for none.
        """
        self.shape = tuple(len(problem.costs[n]) if n >= 0 else 1 for n in nodes)
        self.reduction = reduce_problem(problem, keep=[n for n in nodes if n >= 0])
        place = {n: i for i, n in enumerate(self.reduction.nodes)}
        self.nodes = tuple(place.get(n, -1) for n in nodes)
        # For each side the states that are possible, as the reduced problem numbers them.
        self.states = [self.reduction.alive[n] if n >= 0 else np.zeros(1, np.intp) for n in nodes]
        self._bounds: StateBounds | None = None

    def bounds(self) -> Array:
        """Seconds of all pairs of states at least."""
        found = np.full(self.shape, np.inf)
        if self.reduction.infeasible:
            return found
        found[np.ix_(*self.states)] = self.reduction.constant
        if self.reduction.nodes:
            self._bounds = StateBounds(self.reduction.problem, self.nodes)
            found[np.ix_(*self.states)] += self._bounds.all_states()
        return found

    def bound(self, enters: int, leaves: int) -> tuple[float, tuple[int, ...] | None]:
        """Seconds of two states at least, and a choice that takes hardly more if one is known."""
        if self._bounds is None:
            return self.reduction.constant, self.expand(())
        low, cost, choice = self._bounds.of_states(self._numbers(enters, leaves))
        low, cost = low + self.reduction.constant, cost + self.reduction.constant
        # To expand a choice takes longer than to find it.
        is_worth = cost <= low * (1 + _TIGHT)
        return low, self.expand(self._bounds.expand(choice)) if is_worth else None

    def fixed(self, enters: int, leaves: int) -> Problem:
        """What remains, with these states alone."""
        problem = self.reduction.problem
        costs = list(problem.costs)
        for node, state in zip(self.nodes, self._numbers(enters, leaves), strict=True):
            if node >= 0:
                only = np.full(len(costs[node]), np.inf)
                only[state] = costs[node][state]
                costs[node] = only
        return replace(problem, costs=tuple(costs))

    def expand(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        """A choice of what remains as one of the problem."""
        return self.reduction.expand(choice)

    def _numbers(self, enters: int, leaves: int) -> tuple[int, int]:
        a, b = (
            int(np.searchsorted(alive, state))
            for alive, state in zip(self.states, (enters, leaves), strict=True)
        )
        return a, b
