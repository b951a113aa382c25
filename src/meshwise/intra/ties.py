"""Ties equal parts of a network, so that equal layers are planned once.

Two nodes are tied if they have the same choices and costs and their surroundings look alike up to
a small distance (colour refinement with few rounds).  One variable then stands for a class: costs
add up, and an edge between two nodes of one class costs on the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwise.assignment.problem import Array, Problem, Row, Sums
from meshwise.intra.network import BLOCK, INPUT, LayoutNetwork

# Distance up to which surroundings are compared.  At 3 the two normalisations of a block differ
# and q, k and v do too where that matters, while only the first and last layers stand apart.
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """Classes of nodes: for each node its class, and how many there are."""

    class_of: tuple[int, ...]
    count: int

    def spread(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        """A choice per class as one per node."""
        return tuple(choice[c] for c in self.class_of)


def untied(network: LayoutNetwork) -> Ties:
    """Each node is its own class."""
    return Ties(class_of=tuple(range(len(network.nodes))), count=len(network.nodes))


def find_ties(network: LayoutNetwork) -> Ties:
    """Classes of nodes that look alike."""
    colour = [node.key for node in network.nodes]
    around: list[list[tuple[int, int, int]]] = [[] for _ in colour]
    for edge in network.edges:
        around[edge.source].append((edge.key, 0, edge.target))
        around[edge.target].append((edge.key, 1, edge.source))
    for _ in range(_ROUNDS):
        names: dict[object, int] = {}
        colour = [
            names.setdefault(
                (colour[u], tuple(sorted((k, d, colour[v]) for k, d, v in around[u]))), len(names)
            )
            for u in range(len(colour))
        ]
    first: dict[int, int] = {}
    class_of = tuple(first.setdefault(c, len(first)) for c in colour)
    return Ties(class_of=class_of, count=len(first))


def tied_problem(network: LayoutNetwork, ties: Ties, *, only_loops: bool = False) -> Problem:
    """The network as a problem with one node a class.

    Args:
        network: The network.
        ties: Its classes.
        only_loops: Whether what runs outside of loops is free; what is impossible stays so.
    """
    sums = Sums()
    for node, c in zip(network.nodes, ties.class_of, strict=True):
        is_once = node.kind == INPUT or (node.kind == BLOCK and node.ref[0] == 0)
        is_free = only_loops and is_once
        sums.add(c, _free(node.cost_s) if is_free else node.cost_s)
    amounts: dict[tuple[int, int, int, bool], int] = {}
    matrices: dict[int, Array] = {}
    for edge in network.edges:
        is_free = only_loops and edge.place[0] == 0
        place = (ties.class_of[edge.source], ties.class_of[edge.target], edge.key, is_free)
        amounts[place] = amounts.get(place, 0) + 1
        matrices[edge.key] = edge.cost_s
    for (u, v, key, is_free), amount in amounts.items():
        sums.add_pair(u, v, _free(matrices[key]) if is_free else matrices[key] * amount)
    return sums.problem()


def _free(cost: Array) -> Array:
    return np.where(np.isfinite(cost), 0.0, cost)


def tied_row(row: Row, ties: Ties) -> Row:
    """A row over nodes as one over classes."""
    sums = Sums()
    for u, weights in row.nodes:
        sums.add(ties.class_of[u], weights)
    for u, v, weights in row.pairs:
        sums.add_pair(ties.class_of[u], ties.class_of[v], weights)
    return sums.row(row.limit, row.name)
