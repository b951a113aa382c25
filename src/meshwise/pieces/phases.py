"""Which operators of a piece run when: before its loop, in the forward and backward pass, after it.

The graph of a piece is one loop over micro-batches with forward and backward pass in its body.  A
stage runs them as programs of their own, in the order of a schedule:

    before     once a step: casts and gathers of weights that the loop reads
    forward    what the activations that leave follow from
    backward   all else of the body, with what is cheaper to compute again than to keep
    after      once a step: the update

Source: docs/decisions/0013.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from meshwise.graph.graph import Graph
from meshwise.pieces.forward_terms import leaving_terms
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.residuals import Kept, ancestors, kept_between


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The operators of a piece by phase; positions, ascending.

    Attributes:
        before: Operators of the graph that run once a step, first.
        forward: Operators of the loop's body that the forward pass runs.
        backward: Operators of the loop's body that the backward pass runs, those that run again
            included.
        after: Operators of the graph that the update runs, those that run again included.
    """

    before: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    after: tuple[int, ...]


def phases_of(piece: PieceGraph) -> Phases:
    """Divide the operators of a piece.

    Args:
        piece: The piece.

    Returns:
        Its operators by phase.
    """
    graph = piece.graph
    loop = graph.operators[piece.loop]
    first = ancestors(graph, [*loop.inputs, *(graph.outputs[j] for j in piece.early)])
    gone = {*(c.cotangent for c in piece.entering), *piece.early}
    results = {t for j, t in enumerate(graph.outputs) if j not in gone}
    late = ancestors(graph, results) - first - {piece.loop}
    wanted = {*results, *(t for i in late for t in graph.operators[i].inputs)}
    outer = kept_between(graph, first, wanted, frozenset(graph.inputs))
    return Phases(
        before=tuple(sorted(first)),
        forward=piece.forward,
        backward=backward_operators(piece),
        after=tuple(sorted({*late, *outer.again})),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCut:
    """How the operators of a graph are divided into a first and a second program.

    Attributes:
        second: Operators that only the second program runs.
        again: Operators of the first program that the second one runs once more.
        given: Inputs of the graph that both programs have as they came.  What a program needs of
            them in another layout it makes for itself; all else the first one hands over.
    """

    second: frozenset[int]
    again: frozenset[int]
    given: frozenset[int]


def program_cuts(piece: PieceGraph) -> Mapping[tuple[int, ...], ProgramCut]:
    """Return where the graph of a piece and the body of its loop are divided into programs.

    Args:
        piece: The piece.

    Returns:
        The cut of the graph, at `()`, and that of the body, by the path of the body.
    """
    graph, phases = piece.graph, phases_of(piece)
    loop = graph.operators[piece.loop]
    (body,), structure = loop.bodies, loop.structure
    assert structure is not None
    entering = {graph.inputs[c.value] for c in piece.entering}
    pairs = zip(body.inputs, structure.parts[0].operands, strict=True)
    free = frozenset(t for t, k in pairs if loop.inputs[k] not in entering)
    return {
        (): _cut((*phases.before, piece.loop), phases.after, frozenset(graph.inputs)),
        (piece.loop, 0): _cut(phases.forward, phases.backward, free),
    }


def _cut(first: Collection[int], second: Collection[int], given: frozenset[int]) -> ProgramCut:
    both = frozenset(second).intersection(first)
    return ProgramCut(second=frozenset(second) - both, again=both, given=given)


def backward_operators(piece: PieceGraph) -> tuple[int, ...]:
    """Find the operators of the loop's body that the backward pass runs.

    Args:
        piece: The piece.

    Returns:
        Their positions, ascending.
    """
    body = piece.graph.operators[piece.loop].bodies[0]
    rest = ancestors(body, body.outputs).difference(piece.forward)
    return tuple(sorted({*rest, *piece.border.again}))


def divided_body(
    graph: Graph, loop: int, entering: Collection[int], leaving: Collection[int]
) -> tuple[tuple[int, ...], Kept]:
    """Return the forward pass of a loop's body, and what the backward pass has of it.

    Args:
        graph: The graph of a piece.
        loop: Position of its loop.
        entering: Tensors of the graph: activations that enter.
        leaving: Tensors of the graph: activations that leave.

    Returns:
        Operators of the body, ascending; the border between the passes.
    """
    operator = graph.operators[loop]
    body, structure = operator.bodies[0], operator.structure
    assert structure is not None
    terms = leaving_terms(graph, loop, leaving)
    forward = ancestors(body, terms)
    rest = ancestors(body, body.outputs) - forward
    read = {t for i in rest for t in body.operators[i].inputs}
    pairs = zip(body.inputs, structure.parts[0].operands, strict=True)
    # Weights and rows of the batch are there at any time, unlike activations that enter.
    free = frozenset(t for t, k in pairs if operator.inputs[k] not in entering)
    wanted = read | (set(body.outputs) - set(terms))
    return tuple(sorted(forward)), kept_between(body, forward, wanted, free)


def read_backward(piece: PieceGraph) -> frozenset[int]:
    """Find the inputs of the loop's body that the backward pass reads.

    Args:
        piece: The piece.

    Returns:
        Their tensors.
    """
    body = piece.graph.operators[piece.loop].bodies[0]
    read = {t for i in backward_operators(piece) for t in body.operators[i].inputs}
    return frozenset(read.intersection(body.inputs))
