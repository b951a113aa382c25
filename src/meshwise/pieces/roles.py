"""Who is who among the values of a planned piece, and what its programs hand to each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout
from meshwise.pieces.phases import Phases, phases_of
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision, Use
from meshwise.plan.restricted import Portion, Slot, handed_over

# input:      an argument, or a result that another piece sends for the update
# rows:       an argument that is batch data: rows of the micro-batch
# whole:      what the loop reads in every micro-batch, as it reads it
# sum:        what adds up over micro-batches
# index:      number of the micro-batch
# entering:   an activation that comes over a cut
# cotangent:  of an activation that leaves
# kept:       what the backward pass has of the forward pass
# delayed:    what gradients of weights have of those of activations, where the backward is split
# border:     what the update has of what ran before the loop
# leaving:    an activation that goes over a cut
# inward:     cotangent of an activation that entered
# output:     a result
Role = Literal[
    "input",
    "rows",
    "whole",
    "sum",
    "index",
    "entering",
    "cotangent",
    "kept",
    "delayed",
    "border",
    "leaving",
    "inward",
    "output",
]


class Value(NamedTuple):
    """A value that programs of one piece hand to each other.

    Attributes:
        role: What it is.
        number: The position of the graph's input (`input`, `rows`) or result (`output`), of the
            loop's operand (`whole`, `sum`), of the crossing (`entering`, `cotangent`, `leaving`,
            `inward`), of the tensor (`kept`, `delayed`, `border`).
        layout: How it lies.
    """

    role: Role
    number: int
    layout: Layout


class PieceRoles:
    """Who is who among the values of a planned piece.

    Attributes:
        passed: Cotangents that go on as they came: for the activation that entered the one that
            leaves.
    """

    def __init__(self, piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh) -> None:
        self.piece, self.decision, self.mesh = piece, decision, mesh
        self.phases: Phases = phases_of(piece)
        graph = piece.graph
        self.loop = graph.operators[piece.loop]
        self.chosen = decision.operators[piece.loop]
        structure = self.loop.structure
        assert structure is not None
        self.structure = structure
        self.body, self.inner = self.loop.bodies[0], self.chosen.bodies[0]
        self.entering = {graph.inputs[c.value]: n for n, c in enumerate(piece.entering)}
        self.cotangents = {
            graph.inputs[c.cotangent]: n for n, c in enumerate(piece.leaving) if c.cotangent >= 0
        }
        self.result_of = {t: j for j, t in enumerate(self.loop.outputs)}
        # Rows, made by each micro-batch; sums of what leaves (a loss) are sums like others.
        self.leaving = self._passing([c.value for c in piece.leaving])
        self.inward = self._passing([c.cotangent for c in piece.entering])
        # Cotangents that go on as they came: by crossing that entered the one that leaves.
        self.passed = {
            n: self.cotangents[graph.outputs[c.cotangent]]
            for n, c in enumerate(piece.entering)
            if c.cotangent >= 0 and graph.outputs[c.cotangent] in self.cotangents
        }
        self.value_of_input = dict(zip(self.body.inputs, self._body_values(), strict=True))

    def _passing(self, positions: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """By result of the loop the numbers of crossings; sums over micro-batches left out."""
        part = self.structure.parts[0]
        readers = {t for op in self.body.operators for t in op.inputs}
        entry = dict(zip(part.operands, self.body.inputs, strict=True))
        found: dict[int, tuple[int, ...]] = {}
        for n, position in enumerate(positions):
            t = self.piece.graph.outputs[position] if position >= 0 else -1
            j = self.result_of.get(t, -1)
            k = self.structure.carry_of(j) if j >= 0 else None
            if k is not None and entry.get(k) not in readers:
                found[j] = (*found.get(j, ()), n)
        return found

    def _body_values(self) -> Iterator[Value]:
        """Yield what the inputs of the body are."""
        for k, layout in zip(self.structure.parts[0].operands, self.inner.inputs, strict=True):
            t = self.loop.inputs[k]
            if k in self.structure.stacked_operands:
                yield Value("index", 0, layout)
            elif self.structure.carried_result(k) is not None:
                yield Value("sum", k, layout)
            elif t in self.entering:
                yield Value("entering", self.entering[t], layout)
            elif t in self.cotangents:
                yield Value("cotangent", self.cotangents[t], layout)
            else:
                yield self.whole(k)

    def whole(self, k: int) -> Value:
        """Return an operand read in every micro-batch: made before, or an argument."""
        t, layout = self.loop.inputs[k], self.chosen.uses[k].layout
        graph = self.piece.graph
        if t in graph.inputs:
            i = graph.inputs.index(t)
            if i in self.piece.batch_dims:
                return Value("rows", i, layout)
            if self.decision.inputs[i] == layout:
                return Value("input", i, layout)
        return Value("whole", k, layout)

    def sums(self) -> list[int]:
        """Operands of the loop that add up."""
        passing = {*self.leaving, *self.inward}
        return [k for k, j in self.structure.carries if j not in passing]

    def body_slots(self) -> tuple[tuple[Slot, ...], tuple[Value, ...]]:
        """Return all inputs of the body."""
        slots = [
            Slot(tensor=t, layout=layout)
            for t, layout in zip(self.body.inputs, self.inner.inputs, strict=True)
        ]
        return tuple(slots), tuple(self.value_of_input[t] for t in self.body.inputs)

    def body_results(self, chosen: Collection[int]) -> list[tuple[int, Use, int]]:
        """Outputs of the body for results of the loop: tensor, how it leaves, result."""
        outputs = zip(
            self.structure.parts[0].results, self.body.outputs, self.inner.outputs, strict=True
        )
        return [(t, use, j) for j, t, use in outputs if j in chosen]

    def kept(self) -> tuple[Slot, ...]:
        """Return what the backward pass reads of the forward pass, what entered included."""
        phases = self.phases
        free = {t for t, v in self.value_of_input.items() if v.role != "entering"}
        first = self.body_results(self.leaving)
        second = self.body_results({*self.result_of.values()}.difference(self.leaving))
        return handed_over(
            self.body,
            self.inner,
            self.mesh,
            Portion(phases.forward, [(t, use) for t, use, _ in first]),
            Portion(phases.backward, [(t, use) for t, use, _ in second]),
            free,
        )

    def border(self) -> tuple[Slot, ...]:
        """Return what the update has of what ran before the loop."""
        graph, phases = self.piece.graph, self.phases
        results = [self.piece.graph.outputs[j] for j in self.final_results()]
        uses = [self.decision.outputs[j] for j in self.final_results()]
        return handed_over(
            graph,
            self.decision,
            self.mesh,
            Portion(
                phases.before,
                [(self.loop.inputs[k], use) for k, use in enumerate(self.chosen.uses)],
            ),
            Portion(phases.after, list(zip(results, uses, strict=True))),
            graph.inputs,
        )

    def final_results(self) -> list[int]:
        """Results of the graph that are there once, after all micro-batches."""
        passing = {self.loop.outputs[j] for j in (*self.leaving, *self.inward)}
        graph = self.piece.graph
        gone = {*(c.cotangent for c in self.piece.entering), *self.piece.early}
        pairs = enumerate(graph.outputs)
        return [j for j, t in pairs if t not in passing and j not in gone]
