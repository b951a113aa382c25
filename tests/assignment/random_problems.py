"""Small problems with whole costs, so that sums are exact."""

from __future__ import annotations

import itertools

import numpy as np

from meshwise.assignment.problem import PairCost, Problem, Row


def random_problem(seed, *, rows=0, room=0, holes=False):
    """Six nodes of two to four choices.

    Args:
        seed: Of all that is random.
        rows: Number of rows, each with weights of nodes and of one pair.
        room: More weight that a row allows.
        holes: Whether some pairs of choices are forbidden.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, size=6)
    costs = tuple(rng.integers(0, 9, size=n).astype(float) for n in sizes)
    pairs = []
    for u, v in itertools.combinations(range(6), 2):
        if rng.random() < 0.55:
            cost = rng.integers(0, 9, size=(sizes[u], sizes[v])).astype(float)
            if holes:
                cost[rng.random(cost.shape) < 0.2] = np.inf
            pairs.append(PairCost(u=u, v=v, cost=cost))
    return Problem(
        costs=costs, pairs=tuple(pairs), rows=tuple(_row(rng, sizes, k, room) for k in range(rows))
    )


def _row(rng, sizes, k, room):
    """A row of all nodes and a pair; each has another pair."""
    nodes = tuple((u, rng.integers(0, 9, size=sizes[u]).astype(float)) for u in range(6))
    u, v = k, 5
    both = rng.integers(0, 5, size=(sizes[u], sizes[v])).astype(float)
    return Row(nodes=nodes, limit=float(rng.integers(12, 30) + room), pairs=((u, v, both),))
