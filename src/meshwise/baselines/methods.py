"""Plans with a named method."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from meshwise.baselines.restrictions import data_parallel, heuristic, megatron, zero2, zero3
from meshwise.baselines.roles import InputInfo, input_info
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Graph
from meshwise.intra.options import IntraOptions, IntraResult, Restriction
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import Region, regions

_ALL_GATHER = "all-gather"

BASELINES: Mapping[str, Callable[[Graph, LogicalMesh, InputInfo], Restriction]] = {
    "DataParallel": data_parallel,
    "Zero2": zero2,
    "Zero3": zero3,
    "Megatron": megatron,
    "Heuristic": heuristic,
}


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
    name = method.partition("(")[0]
    if name not in BASELINES:
        raise PlanError(f"no method {method!r}; known are {', '.join(BASELINES)}")
    restriction = BASELINES[name](graph, mesh, input_info(graph, batch_dims))
    restricted = dataclasses.replace(options, restriction=restriction)
    try:
        return plan_graph(graph, mesh, restricted, parts=parts)
    except InfeasibleError:
        if _ALL_GATHER not in restriction.forbid:
            raise
    # Something needs the whole batch: a sort along it, an operator without a rule.
    loose = dataclasses.replace(restriction, forbid=restriction.forbid - {_ALL_GATHER})
    result = plan_graph(graph, mesh, dataclasses.replace(options, restriction=loose), parts=parts)
    return dataclasses.replace(result, conceded=(_ALL_GATHER,))


def plan_intra_op(
    graph: Graph,
    mesh: LogicalMesh,
    batch_dims: Mapping[int, int],
    options: IntraOptions,
    parts: tuple[Region, ...] | None = None,
) -> IntraResult:
    """Plan a graph freely; where that is not proved best, no named method is better.

    A plan that is optimal needs no comparison: every method searches a part of its space.

    Args:
        graph: The graph.
        mesh: Where it runs.
        batch_dims: Positions among the graph's inputs -> the batch dim.
        options: As for `plan_graph`.
        parts: The regions of the graph if they are known.

    Raises:
        InfeasibleError: neither the free search nor a method has a plan that fits.
    """
    best: IntraResult | None = None
    failure: InfeasibleError | None = None
    try:
        best = plan_graph(graph, mesh, options, parts=parts)
    except InfeasibleError as error:
        failure = error
    if best is not None and best.status == "optimal":
        return best
    parts = parts or regions(graph)
    best_s = _price_s(graph, best, mesh, options, parts)
    for name in BASELINES:
        if name == "Megatron" and len(mesh.sizes) != 2:
            continue
        try:
            other = plan_baseline(name, graph, mesh, batch_dims, options, parts)
        except InfeasibleError:
            continue
        price = _price_s(graph, other, mesh, options, parts)
        if price < best_s:
            best_s = price
            bound = min(best.bound_s, price) if best is not None else 0.0
            best = dataclasses.replace(
                other,
                objective_s=price,
                bound_s=bound,
                gap=(price - bound) / price if price > 0 else 0.0,
                space=best.space if best is not None else other.space,
                status="bounded",
            )
    if best is None:
        assert failure is not None
        raise failure
    return best


def _price_s(
    graph: Graph,
    result: IntraResult | None,
    mesh: LogicalMesh,
    options: IntraOptions,
    parts: tuple[Region, ...],
) -> float:
    """What a plan really costs: a copy that several users share is made once."""
    if result is None:
        return math.inf
    return step_time_s(graph, result.decision, mesh, objective=options.objective, parts=parts)
