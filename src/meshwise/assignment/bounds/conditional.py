"""Bounds on what a problem costs once two of its nodes are fixed, for all of their choices.

The problem is reduced once, except for these two nodes.  The messages for free nodes bound all
pairs of choices at once, and are where those for a fixed pair begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.exact_bound import dearest
from meshwise.assignment.bounds.messages import Messages, copied, cost_of, follow, no_messages
from meshwise.assignment.bounds.relaxation import settle
from meshwise.assignment.network import problem_of
from meshwise.assignment.problem import Array, Problem
from meshwise.assignment.reductions.reduction import reduce_problem
from meshwise.assignment.relaxed import Relaxed, relaxed, relaxed_from

_PASSES = 30
_MORE_PASSES = 10
# By what part of its bound a choice may be dearer to be worth a look.
_TIGHT = 2e-6
# What is forbidden is dearer than all else together by this factor; digits of the bound are lost
# to it.
_FORBIDDEN = 1e3


class ConditionalBounds:
    """A problem without what can be decided ahead, except the choices of two nodes."""

    def __init__(self, problem: Problem, nodes: tuple[int, int]) -> None:
        """Reduce the problem, and pass messages until they settle.

        Args:
            problem: A problem without rows.
            nodes: The nodes that will be fixed; -1 for none.
        """
        self._reduction = reduce_problem(problem, keep=[n for n in nodes if n >= 0])
        self._network = self._reduction.network
        self._shape = tuple(len(problem.costs[n]) if n >= 0 else 1 for n in nodes)
        self._nodes = [-1, -1]
        # For each side the choices that are possible.
        self._choices = [np.zeros(1, np.int64)] * 2
        self._messages: Messages | None = None
        self._bound = np.inf if self._reduction.infeasible else self._network.constant
        if self._reduction.infeasible:
            return
        for side, node in enumerate(nodes):
            if node >= 0:
                self._nodes[side] = int(np.searchsorted(self._reduction.nodes, node))
                self._choices[side] = self._reduction.choices(self._nodes[side])
        self._penalty = 0.0
        if len(self._network.size):
            self._messages = no_messages(self._network)
            self._bound = settle(self._network, self._messages, _PASSES)
            dear = dearest(self._network) - self._network.constant
            self._penalty = _FORBIDDEN * max(dear, abs(self._bound), 1e-30)

    def of_all_pairs(self) -> Array:
        """Return about what each pair of choices costs at least; infinite where it is impossible.

        Returns:
            An array of shape (choices of the first node, choices of the second), 1 for none.
        """
        found = np.full(self._shape, np.inf)
        if self._reduction.infeasible:
            return found
        rises = [np.zeros(1), np.zeros(1)]
        if self._messages is not None:
            for side, node in enumerate(self._nodes):
                if node >= 0:
                    values = self._messages.node[self._place(node)]
                    rises[side] = values - values.min()
        found[np.ix_(*self._choices)] = self._bound + rises[0][:, None] + rises[1][None, :]
        return found

    def of_pair(self, first: int, second: int) -> tuple[float, tuple[int, ...] | None]:
        """Return what two choices cost at least, and a choice of all nodes that costs hardly more.

        Args:
            first: Choice of the first node that was named.
            second: Choice of the second one.

        Returns:
            The bound, and the choice; None if none is known.  It need not have these two choices.
        """
        if self._messages is None:
            return self._bound, self.expand(())
        network, held = self._network, self._messages_of(first, second, self._messages)
        low = settle(network, held, _MORE_PASSES)
        choice = np.zeros(len(network.size), np.int64)
        follow(network, held, choice)
        # To expand a choice takes longer than to find it.
        is_tight = float(cost_of(network, choice)) <= low * (1 + _TIGHT)
        return low, self.expand(choice.tolist()) if is_tight else None

    def _messages_of(self, first: int, second: int, free: Messages) -> Messages:
        """Return the messages for free nodes, with other choices of the two made too dear."""
        held = copied(free)
        self._forbid_others(held.node, first, second)
        return held

    def _forbid_others(self, values: Array, first: int, second: int) -> None:
        for node, number in zip(self._nodes, self._numbers(first, second), strict=True):
            if node >= 0:
                mine = values[self._place(node)]
                mine[np.arange(len(mine)) != number] += self._penalty

    def relaxed(self, first: int, second: int) -> Relaxed:
        """Bound and reduce what remains with these choices alone, in turn.

        Args:
            first: Choice of the first node that was named.
            second: Choice of the second one.

        Returns:
            What is known of `fixed`.
        """
        problem = self.fixed(first, second)
        if self._messages is None:
            return relaxed(problem)
        cost = self._network.cost.copy()
        self._forbid_others(cost, first, second)
        network = self._network._replace(cost=cost, constant=0.0)
        return relaxed_from(problem, network, self._messages_of(first, second, self._messages))

    @property
    def constant(self) -> float:
        """Cost besides what `fixed` returns."""
        return self._network.constant

    def fixed(self, first: int, second: int) -> Problem:
        """Return what remains of the problem, with these choices alone, without the constant."""
        problem = problem_of(self._network)
        costs = list(problem.costs)
        for node, number in zip(self._nodes, self._numbers(first, second), strict=True):
            if node >= 0:
                only = np.full(len(costs[node]), np.inf)
                only[number] = costs[node][number]
                costs[node] = only
        return replace(problem, costs=tuple(costs))

    def expand(self, choice: Sequence[int]) -> tuple[int, ...]:
        """Return a choice of what remains as one of the problem."""
        return tuple(self._reduction.expand(np.array(choice, np.int64)).tolist())

    def _place(self, node: int) -> slice:
        first: NDArray[np.int64] = self._network.first_choice
        return slice(int(first[node]), int(first[node + 1]))

    def _numbers(self, first: int, second: int) -> list[int]:
        """Return the two choices as the network numbers them."""
        return [
            int(np.searchsorted(choices, choice))
            for choices, choice in zip(self._choices, (first, second), strict=True)
        ]
