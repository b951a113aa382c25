"""Coordinate descent: a quick way from any choice to a better one."""

from __future__ import annotations

import numpy as np

from meshwise.assignment.flat_problem import Flat, Ints
from meshwise.assignment.problem import Problem, row_weight
from meshwise.assignment.search.descent_kernels import FlatRows, Scratch, descend, descend_within

_SWEEPS = 30


def improved(flat: Flat, choice: Ints) -> tuple[int, ...]:
    """Best choice node by node until nothing changes; rows are not looked at.

    Args:
        flat: Costs.
        choice: Of all nodes; changed.
    """
    descend(_SWEEPS, flat, np.zeros(flat.most_choices()), choice)
    return tuple(choice.tolist())


class DescentWithin:
    """Coordinate descent within the rows of a problem."""

    def __init__(self, problem: Problem) -> None:
        """Lay the problem out.

        Args:
            problem: Each pair of nodes at most once.
        """
        self._problem = problem
        self._flat, self._rows = Flat.of(problem), FlatRows.of(problem)
        self._scratch = Scratch.of(self._flat)

    def improved(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        """Best choice node by node and pair by pair, among those that keep all rows.

        Args:
            choice: Satisfies the rows.
        """
        room = np.array([r.limit - row_weight(r, choice) for r in self._problem.rows], np.float64)
        better = np.array(choice, np.int64)
        descend_within(_SWEEPS, self._flat, self._rows, room, self._scratch, better)
        return tuple(better.tolist())
