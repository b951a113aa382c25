"""The cheapest cut of a network in two, by the largest flow through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_matrix  # pyright: ignore[reportMissingTypeStubs]
from scipy.sparse.csgraph import (  # pyright: ignore[reportMissingTypeStubs]
    breadth_first_order,  # pyright: ignore[reportUnknownVariableType]
    maximum_flow,  # pyright: ignore[reportUnknownVariableType]
)

# SciPy counts flow in 32 bits; half of them leave room for an edge that is never cut.
_TOTAL = 2**30

INFINITE = -1


def source_side(
    num_nodes: int,
    capacities: Mapping[tuple[int, int], int],
    sources: Iterable[int],
    sinks: Iterable[int],
) -> frozenset[int]:
    """The nodes on the side of the sources, as few as possible among the cheapest cuts.

    That set is unique, so it does not depend on how the flow was found.

    Args:
        num_nodes: Nodes are 0, 1, ...
        capacities: Of directed edges; `INFINITE` for those that are never cut.
        sources: Nodes that are on one side, none of them a sink.
        sinks: Nodes that are on the other.
    """
    source, sink = num_nodes, num_nodes + 1
    total = sum(c for c in capacities.values() if c != INFINITE)
    unit = max(1, -(-total // (_TOTAL - len(capacities) - 1)))
    edges = {
        edge: _TOTAL if c == INFINITE else -(-c // unit)
        for edge, c in capacities.items()
        if edge[0] != edge[1]
    }
    edges |= {(source, node): _TOTAL for node in sources}
    edges |= {(node, sink): _TOTAL for node in sinks}
    rows, columns = (np.array([edge[side] for edge in edges], np.int32) for side in (0, 1))
    shape = (num_nodes + 2, num_nodes + 2)
    graph = csr_matrix((np.array(list(edges.values()), np.int32), (rows, columns)), shape=shape)
    flow = cast("Any", maximum_flow(graph, source, sink)).flow
    residual = (graph - flow).tocsr()
    residual.eliminate_zeros()
    reached: list[int] = _reached(residual, source).tolist()
    return frozenset(node for node in reached if node < num_nodes)


def _reached(network: Any, source: int) -> Any:
    return cast("Any", breadth_first_order(network, source, return_predecessors=False))
