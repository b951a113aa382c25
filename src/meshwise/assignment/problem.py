"""Assignment with pairwise costs: each node takes one choice, edges price pairs of choices.

Rows bound sums over nodes (bytes that are live at one time).  The problem knows nothing of
graphs or meshes, so that solvers and the checker can be judged alone.

Source: Alpa eq. 1; the form is that of the ASPLOS 2025 contest on intra-operator parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.kernels.arrays import Floats

Array = Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCost:
    """Cost of pairs of choices of two different nodes, `u < v`."""

    u: int
    v: int
    cost: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`sum of the weights of what is chosen <= limit`.

    Attributes:
        nodes: Pairs (node, weight of each of its choices).
        pairs: Triples (u, v, weights of each pair of their choices), u < v.
        limit: Upper bound of the sum.
        name: Name of the row, for messages.
    """

    nodes: tuple[tuple[int, Array], ...]
    limit: float
    pairs: tuple[tuple[int, int, Array], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The whole problem; an infinite cost marks what must not be chosen."""

    costs: tuple[Array, ...]
    pairs: tuple[PairCost, ...]
    rows: tuple[Row, ...] = ()


class Sums:
    """Costs or weights of nodes and of pairs of nodes, added up in the order in which they come.

    Attributes:
        nodes: The sum of each node.
        pairs: The sum of each pair, the smaller node first.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.nodes: dict[int, Array] = {}
        self.pairs: dict[tuple[int, int], Array] = {}

    def add(self, u: int, values: Array) -> None:
        """Add values of the choices of a node."""
        self.nodes[u] = self.nodes[u] + values if u in self.nodes else values

    def add_pair(self, u: int, v: int, values: Array) -> None:
        """Add a matrix over the choices of two nodes; of a node with itself its diagonal counts."""
        if u == v:
            self.add(u, np.diagonal(values).copy())
            return
        if u > v:
            u, v, values = v, u, values.T
        self.pairs[u, v] = self.pairs[u, v] + values if (u, v) in self.pairs else values

    def problem(self, rows: tuple[Row, ...] = ()) -> Problem:
        """The sums as costs; each node has some."""
        return Problem(
            costs=tuple(w for _, w in self._sorted_nodes()),
            pairs=tuple(PairCost(u=u, v=v, cost=w) for (u, v), w in self._sorted_pairs()),
            rows=rows,
        )

    def row(self, limit: float, name: str = "") -> Row:
        """The sums as weights."""
        return Row(
            nodes=tuple(self._sorted_nodes()),
            pairs=tuple((u, v, w) for (u, v), w in self._sorted_pairs()),
            limit=limit,
            name=name,
        )

    def _sorted_nodes(self) -> list[tuple[int, Array]]:
        return sorted(self.nodes.items(), key=lambda item: item[0])

    def _sorted_pairs(self) -> list[tuple[tuple[int, int], Array]]:
        return sorted(self.pairs.items(), key=lambda item: item[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Answer of a solver.

    Attributes:
        choice: One choice for each node; empty if none is feasible.
        cost: Objective of the choice.
        bound: No feasible choice costs less.
        status: `optimal`, `infeasible`, `bounded` where a counted amount of work ended the search,
            or `time limit` where the clock did.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float
    status: str


def objective(problem: Problem, choice: Sequence[int]) -> float:
    """Return the cost of a choice, in floating point.

    Args:
        problem: The problem.
        choice: One choice for each node.
    """
    total = sum(float(c[i]) for c, i in zip(problem.costs, choice, strict=True))
    return total + sum(float(p.cost[choice[p.u], choice[p.v]]) for p in problem.pairs)


def row_weight(row: Row, choice: Sequence[int]) -> float:
    """Return the left side of a row, in floating point.

    Args:
        row: The row.
        choice: One choice for each node.
    """
    total = sum(float(weights[choice[node]]) for node, weights in row.nodes)
    return total + sum(float(w[choice[u], choice[v]]) for u, v, w in row.pairs)


def is_feasible(problem: Problem, choice: Sequence[int]) -> bool:
    """Return whether a choice satisfies all rows and costs a finite amount.

    Args:
        problem: The problem.
        choice: One choice for each node.
    """
    return objective(problem, choice) < float("inf") and all(
        row_weight(row, choice) <= row.limit for row in problem.rows
    )
