"""What a plan keeps of the graph that it is for, so that it can be read without the graph."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.plan.decision import GraphDecision
from meshwise.plan.flop import strategy_parts
from meshwise.plan.walk import place, visits


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One flat argument of a stage; its layout stands in `decision.inputs`.

    Attributes:
        name: Path of the argument, as `0/params/kernel`; may be empty.
        shape: Of the whole tensor.
        dtype: NumPy-style name.
        itemsize: Bytes of one element.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseOperator:
    """Dense products or convolutions of one source line that run in one way.

    Attributes:
        where: Kind and source line.
        operands: Layouts in which the operands enter.
        results: Layouts that are left.
        count: How often such an operator runs in a step.
        device_flop: FLOP of one device in a step, all `count` runs together.
    """

    where: str
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    count: int
    device_flop: float


def arguments(graph: Graph) -> tuple[Argument, ...]:
    """The inputs of a graph, in order."""
    tensors = [graph.tensors[ident] for ident in graph.inputs]
    return tuple(
        Argument(name=t.name, shape=t.shape, dtype=t.dtype, itemsize=t.itemsize) for t in tensors
    )


def dense_operators(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh
) -> tuple[DenseOperator, ...]:
    """Dense products and convolutions in the order of their first run, equal ones merged.

    Trip counts of loops are multiplied in.
    """
    sums: dict[tuple[str, tuple[Layout, ...], tuple[Layout, ...]], tuple[int, float]] = {}
    for visit in visits(graph, decision):
        if not visit.operator.heavy:
            continue
        operands = tuple(use.layout for use in visit.decision.uses)
        key = (place(visit.operator), operands, visit.decision.results)
        parts = strategy_parts(visit.operator, visit.decision.strategy, mesh.sizes)
        count, flop = sums.get(key, (0, 0.0))
        sums[key] = (count + visit.times, flop + visit.times * visit.operator.flop / parts)
    return tuple(
        DenseOperator(
            where=where, operands=operands, results=results, count=count, device_flop=flop
        )
        for (where, operands, results), (count, flop) in sums.items()
    )
