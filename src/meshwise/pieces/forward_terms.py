"""What the forward pass of a micro-batch makes: the terms that leave the body of a loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from meshwise.graph.graph import Graph, Operator


def leaving_terms(graph: Graph, loop: int, leaving: Iterable[int]) -> tuple[int, ...]:
    """Tensors of the body that leave a piece, as the forward pass makes them.

    Rows leave as they are; of what is a sum over micro-batches it is the term of one.

    Args:
        graph: The graph of the piece.
        loop: Position of its loop.
        leaving: Tensors of the graph that leave.
    """
    operator = graph.operators[loop]
    body, structure = operator.bodies[0], operator.structure
    assert structure is not None
    maker = {t: i for i, op in enumerate(body.operators) for t in op.outputs}
    results = _results_for(graph, operator, leaving)
    part = structure.parts[0]
    entry = dict(zip(part.operands, body.inputs, strict=True))
    found: list[int] = []
    for n, j in enumerate(part.results):
        if j in results:
            k = structure.carry_of(j)
            found.append(_term(body, body.outputs[n], maker, -1 if k is None else entry[k]))
    return tuple(found)


def _results_for(graph: Graph, loop: Operator, tensors: Iterable[int]) -> set[int]:
    """Results of the loop that tensors are, or are made of after it."""
    number = {t: j for j, t in enumerate(loop.outputs)}
    maker = {t: op for op in graph.operators if op is not loop for t in op.outputs}
    found: set[int] = set()
    todo, seen = list(tensors), set(tensors)
    while todo:
        t = todo.pop()
        if t in number:
            found.add(number[t])
        elif t in maker:
            new = set(maker[t].inputs) - seen
            seen |= new
            todo += new
    return found


def _term(body: Graph, result: int, maker: dict[int, int], carried: int) -> int:
    """Return what a micro-batch adds to a sum, as the forward pass leaves it.

    Other values are returned as they are.

    Sums are added up, and terms scaled, at the end of the body.
    """
    if result not in maker or carried not in (inputs := body.operators[maker[result]].inputs):
        return result
    readers = Counter(t for op in body.operators for t in op.inputs)
    terms = [t for t in inputs if t != carried]
    term = terms[0] if terms else result
    while term in maker and readers[term] == 1:
        inputs = [t for t in body.operators[maker[term]].inputs if not body.tensors[t].generated]
        if len(inputs) != 1 or body.tensors[inputs[0]].shape != body.tensors[term].shape:
            break
        (term,) = inputs
    return term
