"""What a plan keeps of the graph that it is for, so that it can be read without the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, local_shape
from meshwise.plan.counts.flop import device_share
from meshwise.plan.counts.own_traffic import own_traffic_bytes
from meshwise.plan.counts.shares import ByKind, Communication, Path, scopes
from meshwise.plan.counts.walk import place
from meshwise.plan.decision import GraphDecision, OperatorDecision

# Operators that take less of a step than this are not told one by one.
_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One flat argument of the step, as it lies on the mesh of a stage.

    Attributes:
        name: Path of the argument, as `0/params/kernel`; may be empty.
        shape: Shape of the whole tensor.
        dtype: NumPy-style name.
        itemsize: Bytes of one element.
        layout: How it is split over the mesh.
        communication: Pairs (kind of collective, seconds a step) of its changes of layout, and
            seconds in which it comes from the host and goes back, as `shares.HOST`.
        in_host: Whether it lies in the memory of the host between its uses.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    layout: Layout
    communication: tuple[tuple[str, float], ...] = ()
    in_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseOperator:
    """Dense products or convolutions of one source line that run in one way.

    Attributes:
        where: Kind and source line.
        operands: Layouts in which the operands enter.
        results: Layouts that are left.
        count: How often such an operator runs in a step.
        device_flop: FLOP of one device in a step, all `count` runs together.
        compute_s: Seconds a step that the FLOP take; an operator takes the longer of the two.
        memory_s: Seconds a step that reading and writing take.
        communication: Pairs (kind of collective, seconds a step) of what moves for it.
    """

    where: str
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    count: int
    device_flop: float
    compute_s: float
    memory_s: float
    communication: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherOperators:
    """Operators of one kind and source line that are no dense products or convolutions.

    Attributes:
        where: Kind and source line; of operators that a compiler fuses, the one that makes most.
        count: How often it runs in a step.
        seconds: Seconds a step, with what is fused to it.
    """

    where: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where one dense operator stands.

    Attributes:
        path: Path of the operator.
        graph: The graph that holds it.
        operator: The operator.
        decision: Its decision.
        times: How often it runs in a step.
    """

    path: Path
    graph: Graph
    operator: Operator
    decision: OperatorDecision
    times: int


def arguments(graph: Graph, decision: GraphDecision, moves: Communication) -> tuple[Argument, ...]:
    """Return the inputs of a graph as they lie, in order.

    Args:
        graph: The graph.
        decision: Its decision.
        moves: Seconds of their changes of layout.
    """
    tensors = [graph.tensors[ident] for ident in graph.inputs]
    return tuple(
        Argument(
            name=t.name,
            shape=t.shape,
            dtype=t.dtype,
            itemsize=t.itemsize,
            layout=layout,
            communication=_sorted(moves.arguments.get(position, {})),
            in_host=position in decision.in_host,
        )
        for position, (t, layout) in enumerate(zip(tensors, decision.inputs, strict=True))
    )


def dense_sites(graph: Graph, decision: GraphDecision) -> tuple[tuple[Site, ...], ...]:
    """Return the dense products and convolutions; equal ones of one line in one way together.

    Args:
        graph: The graph.
        decision: The decision about it.

    Returns:
        For each group the places of its operators; groups stand in the order of their first run.
    """
    groups: dict[tuple[str, tuple[Layout, ...], tuple[Layout, ...]], list[Site]] = {}
    for scope in scopes(graph, decision):
        for i, (op, chosen) in enumerate(
            zip(scope.graph.operators, scope.decision.operators, strict=True)
        ):
            if op.heavy:
                operands = tuple(use.layout for use in chosen.uses)
                site = Site(
                    path=(*scope.path, i),
                    graph=scope.graph,
                    operator=op,
                    decision=chosen,
                    times=scope.times,
                )
                groups.setdefault((place(op), operands, chosen.results), []).append(site)
    return tuple(map(tuple, sorted(groups.values(), key=lambda sites: sites[0].path)))


def dense_operators(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh, moves: Communication
) -> tuple[DenseOperator, ...]:
    """Return a record for each group of `dense_sites`.  Trip counts of loops are multiplied in."""
    return tuple(_record(sites, mesh, moves) for sites in dense_sites(graph, decision))


def _record(sites: Sequence[Site], mesh: LogicalMesh, moves: Communication) -> DenseOperator:
    device, first = mesh.device, sites[0]
    flop = compute_s = memory_s = 0.0
    seconds: ByKind = {}
    for site in sites:
        share = device_share(site.operator, site.decision.strategy, mesh.sizes)
        here = site.times * site.operator.flop * share
        flop += here
        operands = [site.graph.tensors[t] for t in site.operator.inputs]
        results = [site.graph.tensors[t] for t in site.operator.outputs]
        tensors = [*operands, *results]
        layouts = (*(use.layout for use in site.decision.uses), *site.decision.results)
        num_bytes = sum(
            math.prod(local_shape(t.shape, layout, mesh.sizes)) * t.itemsize
            for t, layout in zip(tensors, layouts, strict=True)
        )
        strategy = site.decision.strategy
        num_bytes += own_traffic_bytes(site.operator, strategy, mesh.sizes, operands, results)
        compute_s += device.dense_s(here, tensors[0].dtype, site.times)
        memory_s += site.times * num_bytes / device.memory_bytes_per_s
        for kind, value in moves.operators.get(site.path, {}).items():
            seconds[kind] = seconds.get(kind, 0.0) + value
    return DenseOperator(
        where=place(first.operator),
        operands=tuple(use.layout for use in first.decision.uses),
        results=first.decision.results,
        count=sum(site.times for site in sites),
        device_flop=flop,
        compute_s=compute_s,
        memory_s=memory_s,
        communication=_sorted(seconds),
    )


def others_together(others: Iterable[OtherOperators]) -> tuple[OtherOperators, ...]:
    """Return the sums of operators by their places, dearest first.

    Args:
        others: The operators.
    """
    sums: dict[str, OtherOperators] = {}
    for item in others:
        before = sums.get(item.where)
        sums[item.where] = OtherOperators(
            where=item.where,
            count=item.count + (before.count if before else 0),
            seconds=item.seconds + (before.seconds if before else 0.0),
        )
    return tuple(sorted(sums.values(), key=lambda item: (-item.seconds, item.where)))


def dear(others: Iterable[OtherOperators], step_time_s: float) -> tuple[OtherOperators, ...]:
    """Return those that take a share of a step that is worth a line.

    Args:
        others: The operators.
        step_time_s: Seconds of the step.
    """
    return tuple(item for item in others if item.seconds >= _LEAST_SHARE * step_time_s)


def pattern(name: str) -> str:
    """Return a name with its numbers left open, so that equal layers share it.

    A leading number stays: it is the position of the argument.

    Args:
        name: The path of an argument.

    Returns:
        The name, `*` in place of other numbers.
    """
    return re.sub(r"(?!^)(?<!\d)\d+", "*", name)


def _sorted(seconds: ByKind) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(seconds.items()))
