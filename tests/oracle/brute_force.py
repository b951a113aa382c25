"""The best choice of a network by enumeration; shares nothing with the solver."""

from __future__ import annotations

import math

from meshwise.intra.expand import expand
from meshwise.intra.network import LayoutNetwork
from meshwise.memory.peak import peak


def brute_force(
    network: LayoutNetwork, memory_bytes: int | None = None, below: float = math.inf
) -> tuple[float, tuple[int, ...]]:
    """Cheapest choice that fits and costs less than `below`, with its cost; (below, ()) if none.

    Depth first; only what costs too much is cut.
    """
    nodes, sizes = network.nodes, [len(n.cost_s) for n in network.nodes]
    # Nodes in an order in which edges close early: each next one has most decided neighbours.
    beside: list[set[int]] = [set() for _ in nodes]
    for edge in network.edges:
        beside[edge.source].add(edge.target)
        beside[edge.target].add(edge.source)
    order: list[int] = []
    while len(order) < len(nodes):
        rest = [u for u in range(len(nodes)) if u not in order]
        order.append(max(rest, key=lambda u: (len(beside[u] & set(order)), -u)))
    place = {u: i for i, u in enumerate(order)}
    closing = [
        [e for e in network.edges if max(place[e.source], place[e.target]) == i]
        for i in range(len(order))
    ]
    tail = [0.0] * (len(order) + 1)
    for i in reversed(range(len(order))):
        tail[i] = tail[i + 1] + float(min(nodes[order[i]].cost_s))
        tail[i] += sum(float(e.cost_s.min()) for e in closing[i])
    choice = [-1] * len(nodes)
    best_cost, best = below, ()

    def visit(depth: int, cost: float) -> None:
        nonlocal best_cost, best
        if cost + tail[depth] >= best_cost * (1 - 1e-12):
            return
        if depth == len(order):
            if memory_bytes is not None:
                plan = expand(network, choice)
                if peak(network.graph, plan, network.mesh).num_bytes > memory_bytes:
                    return
            best_cost, best = cost, tuple(choice)
            return
        u = order[depth]
        steps = []
        for i in range(sizes[u]):
            choice[u] = i
            more = float(nodes[u].cost_s[i])
            for e in closing[depth]:
                more += float(e.cost_s[choice[e.source], choice[e.target]])
            steps.append((more, i))
        for more, i in sorted(steps):
            choice[u] = i
            visit(depth + 1, cost + more)
        choice[u] = -1

    visit(0, 0.0)
    return best_cost, best
