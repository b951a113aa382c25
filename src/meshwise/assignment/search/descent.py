"""Coordinate descent: a quick way from any choice to a better one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.network import Network, cost_network
from meshwise.assignment.problem import Problem, row_weight
from meshwise.assignment.search.descent_kernels import (
    DescentScratch,
    NodeRows,
    RowTask,
    descend,
    descend_within,
)

_SWEEPS = 30


def improve_in_place(network: Network, choice: NDArray[np.int64]) -> None:
    """Take the best choice node by node until nothing changes; rows are not looked at.

    Args:
        network: The costs, infinite ones too.
        choice: One choice for each node; changed.
    """
    descend(_SWEEPS, network, np.zeros(int(network.size.max(initial=0))), choice)


class DescentWithin:
    """Coordinate descent within the rows of a problem."""

    def __init__(self, problem: Problem) -> None:
        """Lay the problem out.

        Args:
            problem: Each pair of nodes at most once.
        """
        self._problem = problem
        self._task = RowTask(cost_network(problem), NodeRows.of(problem))
        self._scratch = DescentScratch.of(self._task.net)

    def improved(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        """Return the best choice, node by node and pair by pair, among those that keep all rows.

        Args:
            choice: A choice that keeps the rows.
        """
        room = np.array([r.limit - row_weight(r, choice) for r in self._problem.rows], np.float64)
        better = np.array(choice, np.int64)
        descend_within(_SWEEPS, self._task, room, self._scratch, better)
        return tuple(better.tolist())
