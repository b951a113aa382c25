"""Plans one graph on one mesh."""

from __future__ import annotations

import math
import time

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.graph.graph import Graph
from meshwise.intra.expand import expand
from meshwise.intra.network import Network, build_network
from meshwise.intra.options import IntraOptions, IntraResult
from meshwise.intra.problem import PairCost, Problem
from meshwise.intra.solve import solve


def network_problem(network: Network) -> Problem:
    """The network as a problem; an edge from a node to itself is a cost of its choices."""
    costs = [node.cost_s for node in network.nodes]
    pairs: dict[tuple[int, int], np.ndarray] = {}
    for edge in network.edges:
        u, v, matrix = edge.source, edge.target, edge.cost_s
        if u == v:
            costs[u] = costs[u] + np.diagonal(matrix)
            continue
        if u > v:
            u, v, matrix = v, u, matrix.T
        pairs[u, v] = pairs[u, v] + matrix if (u, v) in pairs else matrix
    return Problem(
        costs=tuple(costs),
        pairs=tuple(PairCost(u=u, v=v, cost=m) for (u, v), m in sorted(pairs.items())),
    )


def plan_graph(graph: Graph, mesh: LogicalMesh, options: IntraOptions) -> IntraResult:
    """Find the cheapest plan of `graph` on `mesh`.

    Raises:
        InfeasibleError: no plan satisfies the restrictions and fits into memory.
        SolverError: the solver failed.
    """
    start = time.monotonic()
    network = build_network(graph, mesh, options)
    problem = network_problem(network)
    found = solve(problem, time_limit_s=options.time_limit_s, seed=options.seed)
    if not found.choice:
        raise InfeasibleError("no plan satisfies the pins and restrictions")
    decision = expand(network, found.choice)
    gap = (found.cost - found.bound) / found.cost if found.cost > 0 else 0.0
    return IntraResult(
        decision=decision,
        objective_s=found.cost,
        bound_s=found.bound,
        gap=gap if math.isfinite(gap) else 0.0,
        space="all layers planned freely",
        status=found.status,
        wall_s=time.monotonic() - start,
        peak_bytes=0,
        num_nodes=len(problem.costs),
        num_left=found.num_left,
    )
