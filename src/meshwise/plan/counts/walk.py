"""Walks over a graph and its decision as every lowering walks: in order, bodies inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import Layout
from meshwise.graph.sends import ring_axes, ring_share, sends
from meshwise.graph.structure import BodyPart
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use

T = TypeVar("T")


class Visit(NamedTuple):
    """An operator with its decision.

    Attributes:
        graph: The graph that holds the operator (that of the body, inside one).
        operator: The operator.
        decision: What was decided for it.
        times: How often it runs in a step.
    """

    graph: Graph
    operator: Operator
    decision: OperatorDecision
    times: int


class Reshard(NamedTuple):
    """A change of layout that a lowering makes.

    Attributes:
        ident: Id of the tensor.
        tensor: What changes its layout.
        before: From.
        after: To.
        times: How often in a step.
        where: Operator and source line of the first user; for an output of the graph that of
            the operator that makes it.
    """

    ident: int
    tensor: Tensor
    before: Layout
    after: Layout
    times: int
    where: str


class Exchange(NamedTuple):
    """What an operator sends while it runs: edges, blocks, rows.

    Attributes:
        kind: `permute`, `all-to-all` or `all-gather`.
        axes: Mesh axes of the group, in mesh order; none of size 1.
        group_size: Devices in one group.
        num_bytes: B of docs/facts.md section 1: what all devices of a group send together.
        times: How often in a step.
        where: Operator and source line.
    """

    kind: str
    axes: tuple[int, ...]
    group_size: int
    num_bytes: int
    times: int
    where: str


def place(operator: Operator) -> str:
    """Return kind and source line of an operator, for messages and records.

    Args:
        operator: The operator.
    """
    return f"{operator.kind} at {operator.where}" if operator.where else operator.kind


def inside(
    operator: Operator, chosen: OperatorDecision
) -> Iterator[tuple[BodyPart, Graph, GraphDecision]]:
    """The bodies of an operator with their decisions; none for most."""
    if operator.structure is not None:
        yield from zip(operator.structure.parts, operator.bodies, chosen.bodies, strict=True)


def visits(graph: Graph, decision: GraphDecision, times: int = 1) -> Iterator[Visit]:
    """All operators, one with bodies before them."""
    for operator, chosen in zip(graph.operators, decision.operators, strict=True):
        yield Visit(graph, operator, chosen, times)
        for part, body, decided in inside(operator, chosen):
            yield from visits(body, decided, times * part.trips)


def has_ring(graph: Graph, decision: GraphDecision, sizes: tuple[int, ...]) -> bool:
    """Return whether blocks of an operator go round devices.

    Args:
        graph: The graph.
        decision: Its decision.
        sizes: Sizes of the mesh axes.
    """
    return any(
        ring_axes(visit.operator.rule, visit.decision.strategy, sizes)
        for visit in visits(graph, decision)
        if visit.operator.rule.ring is not None
    )


def computes_hidden_scores(graph: Graph, decision: GraphDecision, sizes: tuple[int, ...]) -> bool:
    """Return whether devices compute scores that a mask hides, and that one device would leave out.

    Args:
        graph: The graph.
        decision: Its decision.
        sizes: Sizes of the mesh axes.
    """
    alone = (1,) * len(sizes)
    return any(
        ring_share(rule, strategy, sizes) == 1 > ring_share(rule, strategy, alone)
        for visit in visits(graph, decision)
        for rule, strategy in [(visit.operator.rule, visit.decision.strategy)]
        if rule.ring is not None
    )


def homes(graph: Graph, decision: GraphDecision) -> dict[int, Layout]:
    """Return the layout in which each tensor is defined, by tensor.

    Args:
        graph: The graph.
        decision: Its decision.
    """
    found = dict(zip(graph.inputs, decision.inputs, strict=True))
    for operator, chosen in zip(graph.operators, decision.operators, strict=True):
        found.update(zip(operator.outputs, chosen.results, strict=True))
    return found


class LayoutCopies(Generic[T]):
    """The values of one graph in the layouts of their uses.

    A tensor goes from the layout of its definition to `via` and on to the layout of the use.  Each
    of these changes of layout is made once for all uses of one group.
    """

    def __init__(self) -> None:
        """Know no tensor yet."""
        self._home: dict[int, tuple[Layout, T]] = {}
        self._made: dict[tuple[int, int, Layout, Layout], T] = {}

    def define(self, ident: int, layout: Layout, value: T) -> None:
        """Add a tensor.

        Args:
            ident: Its id.
            layout: The layout of its definition.
            value: The value that stands for it in this layout.
        """
        self._home[ident] = (layout, value)

    def of(self, ident: int, use: Use, change: Callable[[T, Layout, Layout], T]) -> T:
        """Return the value of a tensor that is not generated, in the layout of a use.

        Args:
            ident: The tensor.
            use: The use.
            change: Changes the layout of a value from the first layout to the second one; it is
                called for a change that no earlier use of the group has made.
        """
        layout, value = self._home[ident]
        for before, after in ((layout, use.via), (use.via, use.layout)):
            key = (ident, use.group, before, after)
            if before != after and key not in self._made:
                self._made[key] = change(value, before, after)
            value = value if before == after else self._made[key]
        return value


def reshards(graph: Graph, decision: GraphDecision, times: int = 1) -> list[list[Reshard]]:
    """Return the changes of layout of the tensors of one graph, each of them once.

    A tensor goes from the layout of its definition to `via` and on to `layout`; each leg is made
    once for all users of one group.  Generated tensors are made again in each layout, for free.

    Args:
        graph: The graph; its bodies do not count.
        decision: Its decision.
        times: How often it runs in a step.

    Returns:
        Those of each operator, and at last those of the outputs.
    """
    copies = LayoutCopies[None]()
    for ident, layout in homes(graph, decision).items():
        copies.define(ident, layout, None)

    def made(ident: int, use: Use, where: str) -> Iterator[Reshard]:
        legs: list[tuple[Layout, Layout]] = []
        if not graph.tensors[ident].generated:
            copies.of(ident, use, lambda _, before, after: legs.append((before, after)))
        for before, after in legs:
            yield Reshard(ident, graph.tensors[ident], before, after, times, where)

    found = [
        [x for t, use in zip(op.inputs, chosen.uses, strict=True) for x in made(t, use, place(op))]
        for op, chosen in zip(graph.operators, decision.operators, strict=True)
    ]
    maker = {t: place(op) for op in graph.operators for t in op.outputs}
    outputs = enumerate(zip(graph.outputs, decision.outputs, strict=True))
    of_outputs = [
        x for n, (t, use) in outputs for x in made(t, use, f"{maker.get(t, 'input')} -> output {n}")
    ]
    return [*found, of_outputs]


def transfers(
    graph: Graph, decision: GraphDecision, sizes: tuple[int, ...], times: int = 1
) -> Iterator[Reshard | Exchange]:
    """Every change of layout and, on a mesh of these sizes, every exchange, in order."""
    *of_operators, of_outputs = reshards(graph, decision, times)
    for operator, chosen, found in zip(
        graph.operators, decision.operators, of_operators, strict=True
    ):
        yield from found
        yield from exchanges(graph, operator, chosen, sizes, times)
        for part, body, decided in inside(operator, chosen):
            yield from transfers(body, decided, sizes, times * part.trips)
    yield from of_outputs


def exchanges(
    graph: Graph,
    operator: Operator,
    chosen: OperatorDecision,
    sizes: tuple[int, ...],
    times: int = 1,
) -> Iterator[Exchange]:
    """Everything that one operator sends while it runs.

    Args:
        graph: The graph of the operator.
        operator: The operator.
        chosen: What was decided for it.
        sizes: Of the mesh axes.
        times: How often the operator runs in a step.
    """
    operands = [graph.tensors[ident] for ident in operator.inputs]
    results = [graph.tensors[ident] for ident in operator.outputs]
    for send in sends(operator.rule, chosen.strategy, sizes, operands, results):
        count = times * send.times
        yield Exchange(
            send.kind, send.axes, send.group_size, send.num_bytes, count, place(operator)
        )
