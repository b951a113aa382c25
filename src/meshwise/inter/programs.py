"""A planned piece as four programs: before its loop, forward, backward, after it.

Each is a part of the piece's graph with the piece's own decision, so that what was planned is what
runs.  What programs hand to each other is named here, by role and layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout
from meshwise.inter.kept import ancestors
from meshwise.inter.phases import Phases, phases_of
from meshwise.inter.piece import PieceGraph
from meshwise.plan.decision import GraphDecision, Use
from meshwise.plan.restricted import GraphPart, Slot, handed_over, restricted

# input:      an argument, or a result that another piece sends for the update
# rows:       an argument that is batch data: rows of the micro-batch
# whole:      what the loop reads in every micro-batch, as it reads it
# sum:        what adds up over micro-batches
# index:      number of the micro-batch
# entering:   an activation that comes over a cut
# cotangent:  of an activation that leaves
# kept:       what the backward pass has of the forward pass
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
    "border",
    "leaving",
    "inward",
    "output",
]


class Value(NamedTuple):
    """A value that programs of one piece hand to each other.

    Attributes:
        role: What it is.
        number: Of the graph's input (`input`, `rows`) or result (`output`), of the loop's operand
            (`whole`, `sum`), of the crossing (`entering`, `cotangent`, `leaving`, `inward`), of the
            tensor (`kept`, `border`).
        layout: How it lies.
    """

    role: Role
    number: int
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProgram:
    """One of the programs.

    Attributes:
        part: What it runs.
        inputs: What it takes.
        outputs: What it makes.
    """

    part: GraphPart
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class PieceRoles:
    """Who is who among the values of a planned piece.

    Attributes:
        passed: Cotangents that go on as they came: for the activation that entered the one that
            leaves.
        early: Cotangents that are equal for all micro-batches: for the activation that entered the
            position among the results.
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
        # Cotangents that no micro-batch has a part in: by crossing the result.
        self.early = {
            n: c.cotangent
            for n, c in enumerate(piece.entering)
            if c.cotangent >= 0
            and graph.outputs[c.cotangent] not in self.result_of
            and n not in self.passed
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
        """What the inputs of the body are."""
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
        """An operand that the loop reads in every micro-batch: an argument, or made before."""
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
        """All inputs of the body."""
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
        """What the backward pass has of the forward pass; activations that entered included."""
        phases = self.phases
        free = {t for t, v in self.value_of_input.items() if v.role != "entering"}
        first = self.body_results(self.leaving)
        second = self.body_results({*self.result_of.values()}.difference(self.leaving))
        return handed_over(
            self.body,
            self.inner,
            self.mesh,
            phases.forward,
            phases.backward,
            [(t, use) for t, use, _ in first],
            [(t, use) for t, use, _ in second],
            free,
        )

    def border(self) -> tuple[Slot, ...]:
        """What the update has of what ran before the loop."""
        graph, phases = self.piece.graph, self.phases
        results = [self.piece.graph.outputs[j] for j in self.final_results()]
        uses = [self.decision.outputs[j] for j in self.final_results()]
        return handed_over(
            graph,
            self.decision,
            self.mesh,
            phases.before,
            phases.after,
            [(self.loop.inputs[k], use) for k, use in enumerate(self.chosen.uses)],
            list(zip(results, uses, strict=True)),
            graph.inputs,
        )

    def final_results(self) -> list[int]:
        """Results of the graph that are there once, after all micro-batches."""
        passing = {self.loop.outputs[j] for j in (*self.leaving, *self.inward)}
        graph = self.piece.graph
        gone = {c.cotangent for c in self.piece.entering}
        pairs = enumerate(graph.outputs)
        return [j for j, t in pairs if t not in passing and j not in gone]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecePrograms:
    """The programs of a planned piece.

    Attributes:
        before: Once a step; casts and gathers of weights, and empty sums.
        forward: For each micro-batch.
        backward: For each micro-batch.
        kept: What backward has of forward; `entering` ones included.
        final: Results of the graph that come after the loop.
        roles: Who is who.
        border: What runs after the loop has of what ran before it.
    """

    before: PhaseProgram
    forward: PhaseProgram
    backward: PhaseProgram
    kept: tuple[Value, ...]
    final: tuple[int, ...]
    roles: PieceRoles
    border: tuple[Slot, ...]

    def after(self, groups: Sequence[Collection[int]]) -> list[PhaseProgram]:
        """Programs that make groups of results, one after the other, once a step.

        Args:
            groups: Of `final`; what an earlier one computes a later one has.
        """
        return _after(self.roles, self.border, groups)


def piece_programs(roles: PieceRoles) -> PiecePrograms:
    """The programs of a planned piece."""
    kept, border = roles.kept(), roles.border()
    return PiecePrograms(
        before=_before(roles, border),
        forward=_forward(roles, kept),
        backward=_backward(roles, kept),
        kept=tuple(_kept_value(roles, slot) for slot in kept),
        final=tuple(roles.final_results()),
        roles=roles,
        border=border,
    )


def _kept_value(roles: PieceRoles, slot: Slot) -> Value:
    value = roles.value_of_input.get(slot.tensor)
    if value is not None and slot.use is None:
        return value
    return Value("kept", slot.tensor, slot.layout)


def _leave(slot: Slot) -> tuple[int, Use]:
    """How a slot leaves the part that makes it."""
    use = slot.use or Use(group=-1, via=slot.layout, layout=slot.layout)
    return slot.tensor, use


def _before(roles: PieceRoles, border: tuple[Slot, ...]) -> PhaseProgram:
    graph, loop = roles.piece.graph, roles.loop
    outputs: list[tuple[int, Use]] = []
    values: list[Value] = []
    for value in dict.fromkeys(roles.value_of_input.values()):
        if value.role == "whole":
            outputs.append((loop.inputs[value.number], roles.chosen.uses[value.number]))
            values.append(value)
    for k in roles.sums():
        outputs.append((loop.inputs[k], roles.chosen.uses[k]))
        values.append(Value("sum", k, roles.chosen.uses[k].layout))
    for n, j in roles.early.items():
        outputs.append((graph.outputs[j], roles.decision.outputs[j]))
        values.append(Value("inward", n, roles.decision.outputs[j].layout))
    for slot in border:
        outputs.append(_leave(slot))
        values.append(Value("border", slot.tensor, slot.layout))
    slots, inputs = _arguments(roles)
    part = restricted(graph, roles.decision, roles.phases.before, slots, outputs)
    return _program(part, inputs, values)


def _arguments(roles: PieceRoles) -> tuple[list[Slot], list[Value]]:
    pairs = zip(roles.piece.graph.inputs, roles.decision.inputs, strict=True)
    slots = [Slot(tensor=t, layout=layout) for t, layout in pairs]
    return slots, [Value("input", i, slot.layout) for i, slot in enumerate(slots)]


def _program(part: GraphPart, inputs: list[Value], outputs: list[Value]) -> PhaseProgram:
    return PhaseProgram(
        part=part, inputs=tuple(inputs[n] for n in part.inputs), outputs=tuple(outputs)
    )


def _forward(roles: PieceRoles, kept: tuple[Slot, ...]) -> PhaseProgram:
    slots, inputs = roles.body_slots()
    leaving = roles.body_results(roles.leaving)
    made = [s for s in kept if s.use is not None or s.tensor not in roles.value_of_input]
    leaving = [(t, use, n) for t, use, j in leaving for n in roles.leaving[j]]
    part = restricted(
        roles.body,
        roles.inner,
        roles.phases.forward,
        slots,
        [*((t, use) for t, use, _ in leaving), *map(_leave, made)],
    )
    values = [Value("leaving", n, use.layout) for _, use, n in leaving]
    values += [_kept_value(roles, slot) for slot in made]
    return _program(part, list(inputs), values)


def _backward(roles: PieceRoles, kept: tuple[Slot, ...]) -> PhaseProgram:
    slots, inputs = roles.body_slots()
    # What entered is there if it is kept as it came.
    there = [
        (slot, value) for slot, value in zip(slots, inputs, strict=True) if value.role != "entering"
    ]
    there += [(slot, _kept_value(roles, slot)) for slot in kept]
    inward = [
        (t, use, n) for t, use, j in roles.body_results(roles.inward) for n in roles.inward[j]
    ]
    carry = {j: k for k, j in roles.structure.carries}
    sums = roles.body_results({j for k, j in roles.structure.carries if k in set(roles.sums())})
    places = {value: n for n, (_, value) in enumerate(there)}
    outputs = [(t, use) for t, use, _ in (*inward, *sums)]
    values = [Value("inward", n, use.layout) for _, use, n in inward]
    aliases: list[tuple[int, int]] = []
    for _, use, j in sums:
        value = Value("sum", carry[j], use.layout)
        if value in places:
            aliases.append((places[value], len(values)))
        values.append(value)
    part = restricted(
        roles.body,
        roles.inner,
        roles.phases.backward,
        [slot for slot, _ in there],
        outputs,
        tuple(aliases),
    )
    return _program(part, [value for _, value in there], values)


def _after(
    roles: PieceRoles, border: tuple[Slot, ...], groups: Sequence[Collection[int]]
) -> list[PhaseProgram]:
    graph, decision = roles.piece.graph, roles.decision
    slots, inputs = _arguments(roles)
    for slot in border:
        slots.append(slot)
        inputs.append(Value("border", slot.tensor, slot.layout))
    sums = set(roles.sums())
    for k, j in roles.structure.carries:
        if k in sums:
            layout = roles.chosen.results[j]
            slots.append(Slot(tensor=roles.loop.outputs[j], layout=layout))
            inputs.append(Value("sum", k, layout))
    there = {*graph.inputs, *roles.loop.outputs}
    left = set(roles.phases.after)
    found: list[PhaseProgram] = []
    for g, results in enumerate(groups):
        wanted = sorted(results)
        outputs = [(graph.outputs[j], decision.outputs[j]) for j in wanted]
        now = ancestors(graph, [t for t, _ in outputs]) & left
        left -= now
        later = [j for group in groups[g + 1 :] for j in group]
        handed = handed_over(
            graph,
            decision,
            roles.mesh,
            now,
            left,
            outputs,
            [(graph.outputs[j], decision.outputs[j]) for j in later],
            there,
        )
        is_last = g + 1 == len(groups)
        aliases = [(i, wanted.index(j)) for i, j in graph.aliases if j in wanted]
        part = restricted(
            graph,
            decision,
            now,
            slots,
            [*outputs, *map(_leave, handed)],
            tuple(aliases) if is_last else (),
        )
        values = [Value("output", j, decision.outputs[j].layout) for j in wanted]
        more = [Value("border", slot.tensor, slot.layout) for slot in handed]
        found.append(_program(part, inputs, [*values, *more]))
        slots, inputs = [*slots, *handed], [*inputs, *more]
    return found
