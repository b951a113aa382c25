"""Lower bounds on what a problem costs once some of its nodes are fixed, by message passing.

Source: `assignment.bounds.messages`; those for free nodes are where those for fixed ones begin.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.messages import Messages, cost_of, follow, no_messages, sweep
from meshwise.assignment.encoding import encode
from meshwise.assignment.problem import Problem
from meshwise.assignment.reductions.arrays import CUT
from meshwise.assignment.reductions.reduction import reduce_instance
from meshwise.kernels.compiler import BACKWARD, FORWARD

Array = NDArray[np.float64]

_SWEEPS = 30
_MORE_SWEEPS = 10
# Passes end when one closes less than this part of the bound.
_STALL = 1e-6
# In place of what is forbidden; costs are whole numbers far below it.
_FORBIDDEN = 1e15


class StateBounds:
    """Bounds of one problem."""

    def __init__(self, problem: Problem, nodes: Sequence[int]) -> None:
        """Pass messages until they settle.

        Args:
            problem: Without rows.
            nodes: Those that will be fixed; -1 for none.
        """
        encoded = encode(problem)
        # Cut short at once: no node may go that will be fixed.
        reduction = reduce_instance(encoded.instance, np.full(1, CUT, np.int8))
        self.reduction = reduction
        self.num_nodes = len(problem.costs)
        self.infeasible = reduction.infeasible
        self.network = reduction.network
        self.cost = encoded.cost
        self.unit_s = encoded.cost(1) - encoded.cost(0)
        place = {int(n): i for i, n in enumerate(reduction.nodes)}
        self.nodes = [place.get(n, -1) for n in nodes]
        self.sizes = [len(problem.costs[n]) if n >= 0 else 1 for n in nodes]
        self.original = reduction.original
        self.held = no_messages(self.network)
        self.bound = self._settle(self.held, _SWEEPS)

    def _settle(self, held: Messages, sweeps: int) -> float:
        bound = -np.inf
        for _ in range(sweeps):
            sweep(FORWARD, self.network, held)
            before, bound = bound, float(sweep(BACKWARD, self.network, held))
            if bound - before <= _STALL * abs(bound):
                break
        return bound + self.network.constant

    def _choices(self, number: int) -> tuple[slice, NDArray[np.int64]]:
        """Where the choices of a node to fix stand, and their numbers in the problem."""
        i = self.nodes[number]
        low, high = int(self.network.first_choice[i]), int(self.network.first_choice[i + 1])
        return slice(low, high), self.original[low:high]

    def all_states(self) -> Array:
        """Seconds that each combination costs at least, one dim for each node."""
        if self.infeasible:
            return np.full(self.sizes, np.inf)
        out = np.full(self.sizes, self.cost(self.bound))
        for number, node in enumerate(self.nodes):
            if self.sizes[number] == 1 or node < 0:
                continue
            place, original = self._choices(number)
            rise = np.full(self.sizes[number], np.inf)
            values = self.held.node[place]
            rise[original] = (values - values.min()) * self.unit_s
            shape = [1] * len(self.sizes)
            shape[number] = -1
            out = out + rise.reshape(shape)
        return out

    def of_states(self, states: Sequence[int]) -> tuple[float, float, NDArray[np.int64]]:
        """Seconds that one combination costs at least; the cost of a choice, and that choice.

        The choice is one that `expand` takes.  Where the bound is tight, what the messages suggest
        is a best choice; where they suggest none its cost is infinite.
        """
        held = Messages(
            node=self.held.node.copy(),
            at_u=self.held.at_u.copy(),
            at_v=self.held.at_v.copy(),
            stop=self.held.stop,
        )
        for number, (node, state) in enumerate(zip(self.nodes, states, strict=True)):
            if self.sizes[number] == 1 or node < 0:
                continue
            place, original = self._choices(number)
            held.node[place][original != state] += _FORBIDDEN
        bound = self.cost(self._settle(held, _MORE_SWEEPS))
        choice = np.zeros(len(self.network.size), np.int64)
        follow(self.network, held, choice)
        units = float(cost_of(self.network, choice))
        return bound, self.cost(units) if np.isfinite(units) else np.inf, choice

    def expand(self, choice: NDArray[np.int64]) -> tuple[int, ...]:
        """A choice of `of_states` as one of the problem."""
        return tuple(self.reduction.expand(choice)[: self.num_nodes].tolist())
