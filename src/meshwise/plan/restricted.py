"""A part of a decided graph as a decided graph of its own.

Forward and backward pass of a stage are parts of one planned graph, each a program of its own.
What one part hands to the other are values as their operators leave them, or copies of them in
other layouts if the first part made such a copy: so nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout
from meshwise.plan.counts.walk import homes
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.resharding.within import FREE, path


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
        decision: Of the part.
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
    """The part of a graph that makes some of its values.

    Args:
        graph: The whole.
        decision: Of the whole.
        operators: Positions of those that may run; what makes generated values always may.
        inputs: What is there.
        outputs: Tensors of the whole, and how they leave.
        aliases: Pairs (place in `inputs`, place in `outputs`) of what is overwritten.
    """
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

    def found(t: int, use: Use) -> tuple[int, Use]:
        if (t, use.layout) in copies:
            return copies[t, use.layout], replace(use, via=use.layout)
        if (t, use.via) in copies:
            return copies[t, use.via], use
        return t, use

    maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    needed: dict[int, tuple[tuple[int, ...], tuple[Use, ...]]] = {}
    left = [found(t, use) for t, use in outputs]
    there = {*numbers}
    todo = [t for t, _ in left]
    while todo:
        t = todo.pop()
        i = maker.get(t, -1)
        if t in there or i < 0 or i in needed:
            continue
        assert i in operators or graph.tensors[t].generated, f"{t} is not there"
        operator, chosen = graph.operators[i], decision.operators[i]
        pairs = [found(u, use) for u, use in zip(operator.inputs, chosen.uses, strict=True)]
        needed[i] = (tuple(u for u, _ in pairs), tuple(use for _, use in pairs))
        todo += needed[i][0]
    kept = tuple(sorted(needed))
    read = {t for t, _ in left} | {u for operands, _ in needed.values() for u in operands}
    places = tuple(n for n, t in enumerate(numbers) if t in read)
    at = {n: place for place, n in enumerate(places)}
    return GraphPart(
        graph=Graph(
            tensors=tuple(tensors),
            operators=tuple(_reading(graph.operators[i], needed[i][0]) for i in kept),
            inputs=tuple(numbers[n] for n in places),
            outputs=tuple(t for t, _ in left),
            aliases=tuple((at[n], j) for n, j in aliases if n in at),
        ),
        decision=GraphDecision(
            inputs=tuple(inputs[n].layout for n in places),
            operators=tuple(_using(decision.operators[i], needed[i][1]) for i in kept),
            outputs=tuple(use for _, use in left),
        ),
        operators=kept,
        copies=tuple(slot.tensor for slot in inputs if slot.use is not None),
        inputs=places,
    )


def _reading(op: Operator, inputs: tuple[int, ...]) -> Operator:
    return op if op.inputs == inputs else replace(op, inputs=inputs)


def _using(chosen: OperatorDecision, uses: tuple[Use, ...]) -> OperatorDecision:
    return chosen if chosen.uses == uses else replace(chosen, uses=uses)


def leave(slot: Slot) -> tuple[int, Use]:
    """How a slot leaves the part that makes it."""
    use = slot.use or Use(group=-1, via=slot.layout, layout=slot.layout)
    return slot.tensor, use


def within(outer: GraphPart, inner: GraphPart) -> GraphPart:
    """A part of a part as a part of the whole; its inputs stay those of the inner list."""
    num_tensors = len(outer.graph.tensors) - len(outer.copies)
    copies = (t if t < num_tensors else outer.copies[t - num_tensors] for t in inner.copies)
    return replace(
        inner,
        operators=tuple(outer.operators[i] for i in inner.operators),
        copies=(*outer.copies, *copies),
    )


def handed_over(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    first: Collection[int],
    second: Collection[int],
    first_outputs: Sequence[tuple[int, Use]] = (),
    second_outputs: Sequence[tuple[int, Use]] = (),
    free: Collection[int] = (),
) -> tuple[Slot, ...]:
    """What a second part has of a first one, each value once.

    Args:
        graph: The whole.
        decision: Of the whole.
        mesh: Where both run.
        first: Operators of the first part.
        second: Operators of the second part; those of the first that run again included.
        first_outputs: Tensors that leave the first part, and how.
        second_outputs: Tensors that leave the second part, and how.
        free: Inputs of the whole that both parts have.
    """
    home = homes(graph, decision)
    maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    made = set(_uses(graph, decision, first)) | set(first_outputs)
    passed = {(t, use.group, use.via) for t, use in made}
    found: dict[tuple[int, Layout], Slot] = {}

    def keep(t: int, layout: Layout, use: Use | None) -> None:
        found.setdefault((t, layout), Slot(tensor=t, layout=layout, use=use))

    def is_free(t: int, layout: Layout) -> bool:
        tensor = graph.tensors[t]
        steps = path(tensor.shape, tensor.itemsize, home[t], layout, mesh)
        return all(step.kind in FREE for step in steps)

    for t, use in (*_uses(graph, decision, second), *second_outputs):
        i = maker.get(t, -1)
        is_known = t in free or (i >= 0 and i not in first)
        if graph.tensors[t].generated or is_known:
            continue
        is_there = i in second
        if use.layout != home[t] and (t, use) in made:
            if not (is_there and is_free(t, use.layout)):
                keep(t, use.layout, use)
        elif use.via != home[t] and (t, use.group, use.via) in passed:
            if not (is_there and is_free(t, use.via)):
                keep(t, use.via, replace(use, layout=use.via))
        elif not is_there:
            keep(t, home[t], None)
    return tuple(found[key] for key in sorted(found, key=lambda k: (k[0], str(k[1]))))


def _uses(
    graph: Graph, decision: GraphDecision, operators: Collection[int]
) -> Iterator[tuple[int, Use]]:
    for i in sorted(operators):
        yield from zip(graph.operators[i].inputs, decision.operators[i].uses, strict=True)
