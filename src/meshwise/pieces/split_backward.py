"""The backward program of a piece as two: gradients of activations first, of weights later.

    B   cotangents of what entered, and sums that no dense product is behind (biases, norms, losses)
    W   the other sums: gradients of weights

What W has of B is a minimum cut over bytes, as between forward and backward pass
(`pieces.residuals`): element-wise values of B are computed again where what they are made of takes
no more room.

Source: docs/decisions/0015; Qi et al., "Zero bubble pipeline parallelism", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from meshwise.graph.graph import Graph
from meshwise.pieces.programs import PhaseProgram, PiecePrograms, phase_program
from meshwise.pieces.residuals import ancestors, kept_between
from meshwise.pieces.roles import Value
from meshwise.plan.decision import Use
from meshwise.plan.restricted import (
    GraphPart,
    Portion,
    Slot,
    handed_over,
    leave,
    restricted,
    within,
)
from meshwise.program.layer_parts import LayerParts

# What a micro-batch holds until its backward pass is done; all else is there at any time.
HELD_ROLES = frozenset(("kept", "entering", "cotangent", "delayed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBackward:
    """The two programs of a backward pass.

    Attributes:
        gradient: B, of the activations.
        weights: W; without outputs where no dense product makes a gradient of weights.
        delayed: What `weights` has of `gradient`, cotangents that came in not counted.
    """

    gradient: PhaseProgram
    weights: PhaseProgram
    delayed: tuple[Value, ...]

    @property
    def held(self) -> tuple[Value, ...]:
        """What is held from the end of B until W, rows of the batch included."""
        return tuple(v for v in self.weights.inputs if v.role in HELD_ROLES or v.role == "rows")


def split_backward(programs: PiecePrograms) -> SplitBackward:
    """Split the backward program of a piece.

    Args:
        programs: The programs of the piece.

    Returns:
        The gradients of activations, and those of weights.
    """
    whole, mesh = programs.backward, programs.roles.mesh
    graph, decision = whole.part.graph, whole.part.decision
    late = _late(graph, whole)
    early = [n for n in range(len(whole.outputs)) if n not in late]
    first = ancestors(graph, [graph.outputs[n] for n in early])
    rest = ancestors(graph, [graph.outputs[n] for n in late]) - first
    read = {t for i in rest for t in graph.operators[i].inputs} | {graph.outputs[n] for n in late}
    given = dict(zip(graph.inputs, whole.inputs, strict=True))
    free = frozenset(t for t, value in given.items() if value.role not in HELD_ROLES)
    second = rest | set(kept_between(graph, first, read, free).again)

    def leaving(numbers: Collection[int]) -> list[tuple[int, Use]]:
        return [(graph.outputs[n], decision.outputs[n]) for n in numbers]

    portions = Portion(first, leaving(early)), Portion(second, leaving(late))
    slots_between = handed_over(graph, decision, mesh, *portions, free)
    handed = [s for s in slots_between if s.use is not None or s.tensor not in given]
    delayed = [Value("delayed", slot.tensor, slot.layout) for slot in handed]
    slots = [
        Slot(tensor=t, layout=layout)
        for t, layout in zip(graph.inputs, decision.inputs, strict=True)
    ]
    overwritten = {n: i for i, n in graph.aliases}

    def part(
        operators: Collection[int], there: list[Slot], chosen: list[int], more: list[Slot]
    ) -> GraphPart:
        aliases = tuple((overwritten[n], k) for k, n in enumerate(chosen) if n in overwritten)
        outputs = [*leaving(chosen), *map(leave, more)]
        inner = restricted(graph, decision, operators, there, outputs, aliases)
        return within(whole.part, inner)

    inputs = list(whole.inputs)
    return SplitBackward(
        gradient=phase_program(
            part(first, slots, early, handed),
            inputs,
            [*(whole.outputs[n] for n in early), *delayed],
        ),
        weights=phase_program(
            part(second, [*slots, *handed], late, []),
            [*inputs, *delayed],
            [whole.outputs[n] for n in late],
        ),
        delayed=tuple(delayed),
    )


def planned_parts(programs: PiecePrograms, *, splits_backward: bool) -> LayerParts[PhaseProgram]:
    """Return what a planned layer consists of.

    Args:
        programs: The programs of the layer.
        splits_backward: Whether gradients of weights are a program of their own.

    Returns:
        Its parts.
    """
    split = split_backward(programs) if splits_backward else None
    return LayerParts(
        before=programs.before,
        forward=programs.forward,
        backward=programs.backward if split is None else split.gradient,
        weights=None if split is None else split.weights,
        once=programs.once,
    )


def _late(graph: Graph, whole: PhaseProgram) -> list[int]:
    """Positions of the sums that have dense products, or bodies, of their own."""
    inward = [t for t, v in zip(graph.outputs, whole.outputs, strict=True) if v.role == "inward"]
    shared = ancestors(graph, inward)
    found: list[int] = []
    for n, (t, value) in enumerate(zip(graph.outputs, whole.outputs, strict=True)):
        own = ancestors(graph, [t]) - shared if value.role == "sum" else ()
        if any(graph.operators[i].heavy or graph.operators[i].bodies for i in own):
            found.append(n)
    return found
