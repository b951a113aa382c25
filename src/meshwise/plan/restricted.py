"""A part of a decided graph as a decided graph of its own.

Forward and backward pass of a stage are parts of one planned graph, each a program of its own.
What one part hands to the other are values as their operators leave them, or copies of them in
other layouts if the first part made such a copy: so nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import Layout
from meshwise.plan.counts.walk import homes
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.resharding.within import FREE, tensor_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A value at the border of a part.

    Attributes:
        tensor: Id in the whole graph.
        use: How it got there: a copy; None for a value as it was made.
        layout: How it lies.
    """

    tensor: int
    use: Use | None = None
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """A part.

    Attributes:
        graph: Tensors are those of the whole graph, copies that come in behind them.
        decision: The decision about the part.
        operators: For each operator of the part its position in the whole.
        copies: For each tensor behind those of the whole the tensor that it is a copy of.
        inputs: For each input of the part its place in the list of what is there; others are read
            by nothing.
    """

    graph: Graph
    decision: GraphDecision
    operators: tuple[int, ...]
    copies: tuple[int, ...]
    inputs: tuple[int, ...]


def restricted(
    graph: Graph,
    decision: GraphDecision,
    operators: Collection[int],
    inputs: Sequence[Slot],
    outputs: Sequence[tuple[int, Use]],
    aliases: tuple[tuple[int, int], ...] = (),
) -> GraphPart:
    """Return the part of a graph that makes some of its values.

    Args:
        graph: The whole.
        decision: The decision about the whole.
        operators: Positions of those that may run; what makes generated values always may.
        inputs: What is there.
        outputs: Tensors of the whole, and how they leave.
        aliases: Pairs (place in `inputs`, place in `outputs`) of what is overwritten.

    Returns:
        The part; it has the operators that the outputs need, and no others.
    """
    border = _Border.of(graph, inputs)
    left = [border.found(t, use) for t, use in outputs]
    needed = _needed(graph, decision, border, [t for t, _ in left])
    assert all(i in operators or _is_generated(graph.operators[i], graph) for i in needed)
    kept = tuple(sorted(needed))
    read = {t for t, _ in left} | {u for pairs in needed.values() for u, _ in pairs}
    places = tuple(n for n, t in enumerate(border.numbers) if t in read)
    at = {n: place for place, n in enumerate(places)}
    in_host = {graph.inputs[i] for i in decision.in_host}
    return GraphPart(
        graph=Graph(
            tensors=border.tensors,
            operators=tuple(_reading(graph.operators[i], needed[i]) for i in kept),
            inputs=tuple(border.numbers[n] for n in places),
            outputs=tuple(t for t, _ in left),
            aliases=tuple((at[n], j) for n, j in aliases if n in at),
        ),
        decision=GraphDecision(
            inputs=tuple(inputs[n].layout for n in places),
            operators=tuple(_using(decision.operators[i], needed[i]) for i in kept),
            outputs=tuple(use for _, use in left),
            in_host=tuple(
                place
                for place, n in enumerate(places)
                if inputs[n].use is None and inputs[n].tensor in in_host
            ),
        ),
        operators=kept,
        copies=tuple(slot.tensor for slot in inputs if slot.use is not None),
        inputs=places,
    )


@dataclass(frozen=True, slots=True)
class _Border:
    """What a part has of the whole.

    Attributes:
        tensors: Tensors of the whole, and behind them the copies that come in.
        numbers: For each slot its tensor.
        copies: Tensor and layout of each copy -> its number among the tensors.
    """

    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]
    copies: Mapping[tuple[int, Layout], int]

    @classmethod
    def of(cls, graph: Graph, inputs: Sequence[Slot]) -> _Border:
        tensors = list(graph.tensors)
        numbers: list[int] = []
        copies: dict[tuple[int, Layout], int] = {}
        for slot in inputs:
            if slot.use is None:
                numbers.append(slot.tensor)
            else:
                numbers.append(len(tensors))
                copies[slot.tensor, slot.layout] = len(tensors)
                tensors.append(graph.tensors[slot.tensor])
        return cls(tuple(tensors), tuple(numbers), copies)

    def found(self, t: int, use: Use) -> tuple[int, Use]:
        """Return the tensor of the part that a use of the whole reads, and how it reads it."""
        if (t, use.layout) in self.copies:
            return self.copies[t, use.layout], replace(use, via=use.layout)
        return self.copies.get((t, use.via), t), use


def _needed(
    graph: Graph, decision: GraphDecision, border: _Border, wanted: Sequence[int]
) -> dict[int, list[tuple[int, Use]]]:
    """Return the operators that make some values, each with what it reads in the part."""
    maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    there = frozenset(border.numbers)
    needed: dict[int, list[tuple[int, Use]]] = {}
    todo = list(wanted)
    while todo:
        t = todo.pop()
        i = maker.get(t, -1)
        if i >= 0 and i not in needed and t not in there:
            uses = zip(graph.operators[i].inputs, decision.operators[i].uses, strict=True)
            needed[i] = [border.found(u, use) for u, use in uses]
            todo += [u for u, _ in needed[i]]
    return needed


def _is_generated(op: Operator, graph: Graph) -> bool:
    return all(graph.tensors[t].generated for t in op.outputs)


def _reading(op: Operator, pairs: Sequence[tuple[int, Use]]) -> Operator:
    inputs = tuple(t for t, _ in pairs)
    return op if op.inputs == inputs else replace(op, inputs=inputs)


def _using(chosen: OperatorDecision, pairs: Sequence[tuple[int, Use]]) -> OperatorDecision:
    uses = tuple(use for _, use in pairs)
    return chosen if chosen.uses == uses else replace(chosen, uses=uses)


def leave(slot: Slot) -> tuple[int, Use]:
    """Return how a slot leaves the part that makes it.

    Args:
        slot: A value that another part has of this one.

    Returns:
        Its tensor in the whole, and the use by which it gets the layout of the slot.
    """
    use = slot.use or Use(group=-1, via=slot.layout, layout=slot.layout)
    return slot.tensor, use


def within(outer: GraphPart, inner: GraphPart) -> GraphPart:
    """Return a part of a part as a part of the whole; its inputs stay those of the inner list.

    Args:
        outer: A part of the whole.
        inner: A part of the graph of `outer`.

    Returns:
        The inner part, its operators and copies numbered as in the whole.
    """
    num_tensors = len(outer.graph.tensors) - len(outer.copies)
    copies = (t if t < num_tensors else outer.copies[t - num_tensors] for t in inner.copies)
    return replace(
        inner,
        operators=tuple(outer.operators[i] for i in inner.operators),
        copies=(*outer.copies, *copies),
    )


@dataclass(frozen=True, slots=True)
class Portion:
    """Operators of a graph that run one after the other.

    Attributes:
        operators: Their positions.
        outputs: Tensors that leave, and how.
    """

    operators: Collection[int]
    outputs: Sequence[tuple[int, Use]] = ()


def handed_over(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    first: Portion,
    second: Portion,
    free: Collection[int] = (),
    *,
    hands_copies: bool = False,
) -> tuple[Slot, ...]:
    """Return what a second portion has of a first one, each value once.

    Args:
        graph: The whole.
        decision: The decision about the whole.
        mesh: Where both portions run.
        first: What runs first.
        second: What runs then, operators of the first portion that run again included.
        free: Tensors of the whole that both portions have.
        hands_copies: Whether the second portion has what the first one sent of such tensors, too;
            else it sends again.

    Returns:
        The values, in the order of their tensors.
    """
    home = homes(graph, decision)
    maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    made = set(_uses(graph, decision, first.operators)) | set(first.outputs)
    passed = {(t, use.group, use.via) for t, use in made}
    found: dict[tuple[int, Layout], Slot] = {}

    def keep(t: int, layout: Layout, use: Use | None) -> None:
        found.setdefault((t, layout), Slot(tensor=t, layout=layout, use=use))

    for t, use in (*_uses(graph, decision, second.operators), *second.outputs):
        i = maker.get(t, -1)
        is_known = t in free or (i >= 0 and i not in first.operators)
        if graph.tensors[t].generated or (is_known and not hands_copies):
            continue
        is_there = is_known or i in second.operators
        if use.layout != home[t] and (t, use) in made:
            if not (is_there and _is_free(graph.tensors[t], home[t], use.layout, mesh)):
                keep(t, use.layout, use)
        elif use.via != home[t] and (t, use.group, use.via) in passed:
            if not (is_there and _is_free(graph.tensors[t], home[t], use.via, mesh)):
                keep(t, use.via, replace(use, layout=use.via))
        elif not is_there:
            keep(t, home[t], None)
    return tuple(found[key] for key in sorted(found, key=lambda k: (k[0], str(k[1]))))


def without_collectives(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh, operators: Collection[int]
) -> frozenset[int]:
    """Return the operators that have all their operands without a collective.

    Args:
        graph: The whole.
        decision: The decision about the whole.
        mesh: Where it runs.
        operators: Which of its operators are asked about.
    """
    home = homes(graph, decision)
    return frozenset(
        i
        for i in operators
        if all(
            graph.tensors[t].generated or _is_free(graph.tensors[t], home[t], use.layout, mesh)
            for t, use in _uses(graph, decision, (i,))
        )
    )


def _is_free(tensor: Tensor, before: Layout, after: Layout, mesh: LogicalMesh) -> bool:
    steps = tensor_path(tensor, before, after, mesh)
    return all(step.kind in FREE for step in steps)


def _uses(
    graph: Graph, decision: GraphDecision, operators: Collection[int]
) -> Iterator[tuple[int, Use]]:
    for i in sorted(operators):
        yield from zip(graph.operators[i].inputs, decision.operators[i].uses, strict=True)
