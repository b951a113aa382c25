"""A problem as it is given, in flat arrays of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.kernels.arrays import Ints

# Costs of this size and more stand for infinity.
INFINITE_COST = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Nodes that take one choice each, edges that price pairs of choices, and a limit on usage.

    Attributes:
        name: Name of the problem, for messages.
        first_choice: Where the choices of each node begin in `costs` and `usages`; one entry more
            than nodes.
        costs: Cost of each choice; `INFINITE_COST` forbids it.
        usages: Bytes that each choice uses during the interval of its node; 64 bits hold their sum.
        intervals: Shape (nodes, 2): first time, and first time after it; empty if not ascending.
        edges: Shape (edges, 2): the two nodes.
        first_entry: Where the matrix of each edge begins in `edge_costs`; one entry more.
        edge_costs: Matrices, row-major over (choices of the first, choices of the second node).
        limit: Most bytes at any time; None if there is no limit.
    """

    name: str
    first_choice: Ints
    costs: Ints
    usages: Ints
    intervals: Ints
    edges: Ints
    first_entry: Ints
    edge_costs: Ints
    limit: int | None

    @property
    def num_nodes(self) -> int:
        """Return number of nodes."""
        return len(self.first_choice) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Exact cost and usage of a choice.

    Attributes:
        cost: Sum of all costs; None if one of them is infinite.
        peak: Most bytes at any time.
    """

    cost: int | None
    peak: int


def evaluate(instance: Instance, choice: Sequence[int]) -> Evaluation:
    """Check a choice in integers, costs of any size, apart from everything that the solver does.

    Args:
        instance: The problem.
        choice: One choice for each node.

    Returns:
        Its exact cost and peak.

    Raises:
        ValueError: the choice is none of this problem.
    """
    if len(choice) != instance.num_nodes:
        raise ValueError(f"{len(choice)} choices for {instance.num_nodes} nodes")
    taken = np.asarray(choice, dtype=np.int64)
    sizes = np.diff(instance.first_choice)
    if np.any((taken < 0) | (taken >= sizes)):
        worst = int(np.flatnonzero((taken < 0) | (taken >= sizes))[0])
        raise ValueError(f"node {worst} has {sizes[worst]} choices, not a choice {taken[worst]}")
    at = instance.first_choice[:-1] + taken
    costs = instance.costs[at].tolist()
    if len(instance.edges):
        u, v = instance.edges.T
        costs += instance.edge_costs[
            instance.first_entry[:-1] + taken[u] * sizes[v] + taken[v]
        ].tolist()
    live = instance.intervals[:, 0] < instance.intervals[:, 1]
    times, ranks = np.unique(instance.intervals[live], return_inverse=True)
    ranks, used = ranks.reshape(-1, 2), instance.usages[at][live]
    changes = np.zeros(len(times), np.int64)
    np.add.at(changes, ranks[:, 0], used)
    np.subtract.at(changes, ranks[:, 1], used)
    peak = int(np.cumsum(changes).max(initial=0))
    finite = max(costs, default=0) < INFINITE_COST
    return Evaluation(cost=sum(costs) if finite else None, peak=peak)


def is_solution(instance: Instance, choice: Sequence[int]) -> bool:
    """Return whether a choice costs a finite amount and stays within the limit.

    Args:
        instance: The problem.
        choice: One choice for each node.
    """
    found = evaluate(instance, choice)
    return found.cost is not None and (instance.limit is None or found.peak <= instance.limit)
