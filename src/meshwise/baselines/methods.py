"""Plans with a named method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from meshwise.baselines.restrictions import data_parallel, heuristic, megatron, zero2, zero3
from meshwise.baselines.roles import InputInfo, input_info
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Graph
from meshwise.intra.limit.refusal import smallest_refusal
from meshwise.intra.options import IntraOptions, IntraResult, Restriction
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.regions import Region

_ALL_GATHER = "all-gather"

BASELINES: Mapping[str, Callable[[Graph, LogicalMesh, InputInfo], Restriction]] = {
    "DataParallel": data_parallel,
    "Zero2": zero2,
    "Zero3": zero3,
    "Megatron": megatron,
    "Heuristic": heuristic,
}


def restriction_of(
    method: str, graph: Graph, mesh: LogicalMesh, batch_dims: Mapping[int, int]
) -> Restriction:
    """Return the space of plans of a method.

    Args:
        method: Its name; anything from a parenthesis on is ignored, as in `Zero2()`.
        graph: The graph.
        mesh: Where it runs.
        batch_dims: Positions among the graph's inputs -> the batch dim.

    Raises:
        PlanError: there is no such method.
    """
    name = method.partition("(")[0]
    if name not in BASELINES:
        raise PlanError(f"no method {method!r}; known are {', '.join(BASELINES)}")
    return BASELINES[name](graph, mesh, input_info(graph, batch_dims))


def loosened(restriction: Restriction) -> Restriction | None:
    """Return the same with the all-gather that some steps need; None if it is allowed anyway."""
    if _ALL_GATHER not in restriction.forbid:
        return None
    return dataclasses.replace(restriction, forbid=restriction.forbid - {_ALL_GATHER})


def plan_baseline(
    method: str,
    graph: Graph,
    mesh: LogicalMesh,
    batch_dims: Mapping[int, int],
    options: IntraOptions,
    parts: tuple[Region, ...] | None = None,
) -> IntraResult:
    """Plan a graph as a method does.

    Args:
        method: Its name; anything from a parenthesis on is ignored, as in `Zero2()`.
        graph: The graph.
        mesh: Where it runs; for Megatron axis 0 is data parallel, axis 1 tensor parallel.
        batch_dims: Positions among the graph's inputs -> the batch dim.
        options: As for `plan_graph`; its restriction is replaced by the method's.
        parts: The regions of the graph if they are known.

    Raises:
        PlanError: there is no such method.
        InfeasibleError: the method has no plan that fits.
    """
    restriction = restriction_of(method, graph, mesh, batch_dims)
    restricted = dataclasses.replace(options, restriction=restriction)
    try:
        return plan_graph(graph, mesh, restricted, parts=parts)
    except InfeasibleError as error:
        # Something needs the whole batch: a sort along it, an operator without a rule.
        loose = loosened(restriction)
        if loose is None:
            raise
        strict = error
    loosely = dataclasses.replace(options, restriction=loose)
    try:
        result = plan_graph(graph, mesh, loosely, parts=parts)
    except InfeasibleError as error:
        raise smallest_refusal([strict, error]) from error
    return dataclasses.replace(result, conceded=(_ALL_GATHER,))
