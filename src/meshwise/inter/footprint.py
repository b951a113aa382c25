"""What one device holds for a run of layers in a pipeline.

    resident     parameters, optimizer state, gradients that add up: held all the time
    microbatch   what the backward pass of a micro-batch needs of its forward pass: held for every
                 micro-batch in flight
    temporary    what else is live at the peak

Source: Alpa eq. 5, with what is held once apart from what is held for each micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.inter.piece import PieceGraph
from meshwise.intra.liveness import liveness
from meshwise.intra.memory import peak
from meshwise.intra.shapes import local_bytes
from meshwise.plan.decision import GraphDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one device.

    Attributes:
        resident_bytes: Held all the time.
        microbatch_bytes: Held for each micro-batch in flight.
        temporary_bytes: On top at the peak.
    """

    resident_bytes: int
    microbatch_bytes: int
    temporary_bytes: int


def forward_end(piece: PieceGraph) -> int:
    """Operators of the loop's body before this one are the forward pass."""
    loop = piece.graph.operators[piece.loop]
    body = loop.bodies[0]
    assert loop.structure is not None
    maker = {t: i for i, op in enumerate(body.operators) for t in op.outputs}
    results = _results_for(piece, [piece.graph.outputs[c.value] for c in piece.leaving])
    part = loop.structure.parts[0]
    entry = dict(zip(part.operands, body.inputs, strict=True))
    made: list[int] = []
    for n, j in enumerate(part.results):
        if j in results:
            k = loop.structure.carry_of(j)
            term = _term(body, body.outputs[n], maker, -1 if k is None else entry[k])
            made.append(maker.get(term, -1))
    return 1 + max(made, default=len(body.operators) - 1)


def _results_for(piece: PieceGraph, tensors: list[int]) -> set[int]:
    """Results of the loop that tensors are, or are made of after it."""
    graph = piece.graph
    loop = graph.operators[piece.loop]
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
    """What a micro-batch adds to a sum, as the forward pass leaves it; others are what they are.

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


def residuals(body: Graph, end: int) -> list[int]:
    """Tensors with a buffer that operators before `end` make and later ones read."""
    live = liveness(body)
    found: list[int] = []
    inputs = set(body.inputs)
    for t in range(len(body.tensors)):
        if live.root[t] != t or t in live.fused or t in inputs or body.tensors[t].generated:
            continue
        if live.start[t] < end <= live.end[t] < len(body.operators):
            found.append(t)
    return found


def crossing_inputs(piece: PieceGraph) -> frozenset[int]:
    """Positions of the inputs that come over a cut."""
    return frozenset(c.value for c in piece.entering) | {c.cotangent for c in piece.leaving}


def passing_results(piece: PieceGraph) -> frozenset[int]:
    """Tensors among the results that go over a cut."""
    outputs = piece.graph.outputs
    leaving = {outputs[c.value] for c in piece.leaving}
    return frozenset(leaving | {outputs[c.cotangent] for c in piece.entering if c.cotangent >= 0})


def footprint(piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh) -> Footprint:
    """What a device holds under a plan of the piece's graph."""
    graph, sizes = piece.graph, mesh.sizes
    crossing = crossing_inputs(piece)
    resident = sum(
        local_bytes(graph.tensors[t], w, sizes)
        for i, (t, w) in enumerate(zip(graph.inputs, decision.inputs, strict=True))
        if i not in crossing
    )
    loop, chosen = graph.operators[piece.loop], decision.operators[piece.loop]
    structure = loop.structure
    assert structure is not None
    passing = passing_results(piece)
    for k, j in structure.carries:
        if loop.outputs[j] not in passing:
            layout = chosen.uses[k].layout
            resident += local_bytes(graph.tensors[loop.outputs[j]], layout, sizes)
    resident += sum(
        local_bytes(graph.tensors[t], layout, sizes)
        for t, layout in _kept_for_the_loop(piece, decision)
    )
    held = _held(piece, decision, mesh)
    highest = peak(graph, decision, mesh).num_bytes
    return Footprint(
        resident_bytes=resident,
        microbatch_bytes=held,
        temporary_bytes=max(highest - resident - held, 0),
    )


def constants_of_loop(piece: PieceGraph) -> list[int]:
    """Positions of the loop's operands that it reads in every micro-batch, cut ones excepted."""
    loop, inputs = piece.graph.operators[piece.loop], piece.graph.inputs
    assert loop.structure is not None
    crossing = {inputs[i] for i in crossing_inputs(piece)}
    return [
        k
        for k, t in enumerate(loop.inputs)
        if loop.structure.carried_result(k) is None
        and k not in loop.structure.stacked_operands
        and t not in crossing
        and not piece.graph.tensors[t].generated
    ]


def _kept_for_the_loop(piece: PieceGraph, decision: GraphDecision) -> Iterator[tuple[int, Layout]]:
    """Values that live while the loop runs and are no inputs: gathered weights, casts of them."""
    graph = piece.graph
    loop, chosen = graph.operators[piece.loop], decision.operators[piece.loop]
    given = dict(zip(graph.inputs, decision.inputs, strict=True))
    seen: set[tuple[int, Layout]] = set()
    for k in constants_of_loop(piece):
        t, layout = loop.inputs[k], chosen.uses[k].layout
        if given.get(t) != layout and (t, layout) not in seen:
            seen.add((t, layout))
            yield t, layout


def _held(piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh) -> int:
    """Bytes of what enters and of the residuals of one micro-batch."""
    body = piece.graph.operators[piece.loop].bodies[0]
    inner = decision.operators[piece.loop].bodies[0]
    layouts: dict[int, Layout] = dict(zip(body.inputs, inner.inputs, strict=True))
    for op, chosen in zip(body.operators, inner.operators, strict=True):
        layouts.update(zip(op.outputs, chosen.results, strict=True))
    total = sum(
        local_bytes(body.tensors[t], layouts[t], mesh.sizes)
        for t in residuals(body, forward_end(piece))
    )
    loop = decision.operators[piece.loop]
    inputs = piece.graph.operators[piece.loop].inputs
    for crossing in piece.entering:
        tensor = piece.graph.inputs[crossing.value]
        if tensor in inputs:
            layout = loop.uses[inputs.index(tensor)].layout
            total += local_bytes(piece.graph.tensors[tensor], layout, mesh.sizes)
    return total
