"""Sharding propagation: decide node by node in program order, never looking ahead.

What no decided neighbour says anything about, such as a sum that begins with zeros, waits for
those after it.
"""

from __future__ import annotations

import numpy as np

from meshwise.assignment.problem import Array
from meshwise.intra.network import LayoutNetwork


def propagate(network: LayoutNetwork) -> tuple[int, ...]:
    """The choice of each node that is cheapest given the nodes decided before it."""
    around: list[list[tuple[int, Array]]] = [[] for _ in network.nodes]
    own: list[Array] = [node.cost_s for node in network.nodes]
    for edge in network.edges:
        if edge.source == edge.target:
            own[edge.source] = own[edge.source] + np.diagonal(edge.cost_s)
            continue
        around[edge.source].append((edge.target, edge.cost_s))
        around[edge.target].append((edge.source, edge.cost_s.T))
    waiting = sorted(range(len(network.nodes)), key=lambda u: (network.nodes[u].position, u))
    choice = [-1] * len(network.nodes)
    is_forced = False
    while waiting:
        later: list[int] = []
        for u in waiting:
            total = own[u]
            for v, matrix in around[u]:
                if choice[v] >= 0:
                    total = total + matrix[:, choice[v]]
            if not is_forced and _says_nothing(total) and any(choice[v] < 0 for v, _ in around[u]):
                later.append(u)
                continue
            choice[u] = int(np.argmin(total))
            is_forced = False
        # Where nothing says anything, the first node of the program takes its first choice.
        is_forced = len(later) == len(waiting)
        waiting = later
    return tuple(choice)


def _says_nothing(total: Array) -> bool:
    """Whether all choices that there are cost the same."""
    finite = total[np.isfinite(total)]
    return finite.size > 1 and bool(finite.max() - finite.min() <= 1e-12 * abs(finite.max()))
