"""Sharding propagation: decide node by node in program order, never looking ahead."""

from __future__ import annotations

import numpy as np

from meshwise.intra.network import Network
from meshwise.intra.problem import Array


def propagate(network: Network) -> tuple[int, ...]:
    """The choice of each node that is cheapest given the nodes decided before it."""
    around: list[list[tuple[int, Array]]] = [[] for _ in network.nodes]
    own: list[Array] = [node.cost_s for node in network.nodes]
    for edge in network.edges:
        if edge.source == edge.target:
            own[edge.source] = own[edge.source] + np.diagonal(edge.cost_s)
            continue
        around[edge.source].append((edge.target, edge.cost_s))
        around[edge.target].append((edge.source, edge.cost_s.T))
    order = sorted(range(len(network.nodes)), key=lambda u: (network.nodes[u].position, u))
    choice = [-1] * len(network.nodes)
    for u in order:
        total = own[u]
        for v, matrix in around[u]:
            if choice[v] >= 0:
                total = total + matrix[:, choice[v]]
        choice[u] = int(np.argmin(total))
    return tuple(choice)
