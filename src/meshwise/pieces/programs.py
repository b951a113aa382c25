"""A planned piece as four programs: before its loop, forward, backward, after it.

Each is a part of the piece's graph with the piece's own decision, so that what was planned is what
runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshwise.pieces.residuals import ancestors, kept_between
from meshwise.pieces.roles import PieceRoles, Value
from meshwise.plan.decision import Use
from meshwise.plan.restricted import (
    GraphPart,
    Portion,
    Slot,
    handed_over,
    leave,
    restricted,
    without_collectives,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecePrograms:
    """The programs of a planned piece.

    Attributes:
        before: Once a step; casts and gathers of weights, empty sums, early results.
        forward: For each micro-batch.
        backward: For each micro-batch.
        kept: What backward has of forward; `entering` ones included.
        roles: Who is who.
        once: After the loop: values for other pieces, what each phase of the update sends, the
            results of the step.
    """

    before: PhaseProgram
    forward: PhaseProgram
    backward: PhaseProgram
    kept: tuple[Value, ...]
    roles: PieceRoles
    once: tuple[PhaseProgram, ...]

    @property
    def handed(self) -> frozenset[Value]:
        """What one program after the loop has of another: all layers hold theirs at once."""
        made = (v for program in self.once for v in program.outputs)
        return frozenset(v for v in made if v.role == "border")


def piece_programs(roles: PieceRoles) -> PiecePrograms:
    """Divide a planned piece into programs.

    Args:
        roles: What each of its values is.

    Returns:
        The programs.
    """
    kept, border = roles.kept(), roles.border()
    return PiecePrograms(
        before=_before(roles, border),
        forward=_forward(roles, kept),
        backward=_backward(roles, kept),
        kept=tuple(_kept_value(roles, slot) for slot in kept),
        roles=roles,
        once=tuple(_once(roles, border)),
    )


def _kept_value(roles: PieceRoles, slot: Slot) -> Value:
    value = roles.value_of_input.get(slot.tensor)
    if value is not None and slot.use is None:
        return value
    return Value("kept", slot.tensor, slot.layout)


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
    for j in roles.piece.early:
        outputs.append((graph.outputs[j], roles.decision.outputs[j]))
        values.append(Value("output", j, roles.decision.outputs[j].layout))
    for slot in border:
        outputs.append(leave(slot))
        values.append(Value("border", slot.tensor, slot.layout))
    slots, inputs = _arguments(roles)
    part = restricted(graph, roles.decision, roles.phases.before, slots, outputs)
    return phase_program(part, inputs, values)


def _arguments(roles: PieceRoles) -> tuple[list[Slot], list[Value]]:
    pairs = zip(roles.piece.graph.inputs, roles.decision.inputs, strict=True)
    slots = [Slot(tensor=t, layout=layout) for t, layout in pairs]
    return slots, [Value("input", i, slot.layout) for i, slot in enumerate(slots)]


def phase_program(
    part: GraphPart, inputs: Sequence[Value], outputs: Iterable[Value]
) -> PhaseProgram:
    """Return a part of a graph as a program.

    Args:
        part: The part.
        inputs: What is there, of which the part names what it takes.
        outputs: What it makes.
    """
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
        [*((t, use) for t, use, _ in leaving), *map(leave, made)],
    )
    values = [Value("leaving", n, use.layout) for _, use, n in leaving]
    values += [_kept_value(roles, slot) for slot in made]
    return phase_program(part, list(inputs), values)


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
    return phase_program(part, [value for _, value in there], values)


def _once(roles: PieceRoles, border: tuple[Slot, ...]) -> Iterator[PhaseProgram]:
    """Yield the programs after the loop; each has what was there, and what earlier ones hand on."""
    update = roles.piece.update
    of_update = {j for group in update for j in group}
    groups = [[j for j in roles.final_results() if j not in of_update], *update]
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
    there = {*graph.inputs, *roles.loop.outputs, *(slot.tensor for slot in border)}
    left, done = set(roles.phases.after), set[int]()
    for g, results in enumerate(groups):
        wanted = sorted(results)
        outputs = [(graph.outputs[j], decision.outputs[j]) for j in wanted]
        now = ancestors(graph, [t for t, _ in outputs]) & left
        left -= now
        done |= now
        later = [
            (graph.outputs[j], decision.outputs[j]) for group in groups[g + 1 :] for j in group
        ]
        # What is cheap is computed again: what is handed over all layers hold at once.
        reads = [t for i in left for t in graph.operators[i].inputs]
        again = kept_between(graph, done, [*reads, *(t for t, _ in later)], there).again
        left |= without_collectives(graph, decision, roles.mesh, again)
        portions = Portion(now, outputs), Portion(left, later)
        had = {(slot.tensor, slot.layout) for slot in slots}
        # A gradient that one phase reduced is not reduced again by the next one.
        found = handed_over(graph, decision, roles.mesh, *portions, there, hands_copies=True)
        handed = [slot for slot in found if (slot.tensor, slot.layout) not in had]
        is_last = g + 1 == len(groups)
        aliases = [(i, wanted.index(j)) for i, j in graph.aliases if j in wanted]
        part = restricted(
            graph,
            decision,
            now,
            slots,
            [*outputs, *map(leave, handed)],
            tuple(aliases) if is_last else (),
        )
        values = [Value("output", j, decision.outputs[j].layout) for j in wanted]
        more = [Value("border", slot.tensor, slot.layout) for slot in handed]
        yield phase_program(part, inputs, [*values, *more])
        slots, inputs = [*slots, *handed], [*inputs, *more]
        there |= {slot.tensor for slot in handed if slot.use is None}
