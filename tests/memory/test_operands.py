"""What a device makes of the factors of a product, and of what passes a barrier."""

from __future__ import annotations

import pytest

from meshwise.graph.graph import Operator
from meshwise.graph.loops import DimMap, Loop, LoopRule
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue
from meshwise.memory.operands import passed, rewritten
from meshwise.memory.treatment import treatment

INPUT, FUSIBLE = InstructionKind.INPUT, InstructionKind.FUSIBLE
VIEW, BARRIER = InstructionKind.VIEW, InstructionKind.BARRIER
OPAQUE = InstructionKind.OPAQUE

ROWS, TOKENS, RESULTS, FEATURES = range(4)


def gradient_of_a_weight(left: tuple[int, ...]) -> Operator:
    """A product of cotangents and activations (rows, tokens, features), summed over both."""

    def dims(loops: tuple[int, ...]) -> DimMap:
        return tuple((loop,) for loop in loops)

    loops = tuple(Loop(4, kind) for kind in ("sum", "sum", "parallel", "parallel"))
    operands = (dims(left), dims((ROWS, TOKENS, FEATURES)))
    rule = LoopRule(loops, operands, (dims((RESULTS, FEATURES)),))
    return Operator(
        kind="dot_general", inputs=(0, 1), outputs=(2,), rule=rule, flop=0.0, heavy=True
    )


def made(program: LocalProgram, op: Operator, operands: list[int], *, folds: bool) -> LocalValue:
    """The first factor as the product reads it."""
    treated = treatment(op, ((4, 4, 4), (4, 4, 4)))
    found = rewritten(program, op, 0, treated, operands, folds_swaps=folds)
    return program.values[found[0]]


@pytest.mark.parametrize(
    ("left", "folds", "kind"),
    [
        ((ROWS, TOKENS, RESULTS), True, VIEW),
        ((ROWS, TOKENS, RESULTS), False, FUSIBLE),
        # Nothing but a copy brings rows and tokens together.
        ((ROWS, RESULTS, TOKENS), True, FUSIBLE),
        ((RESULTS, ROWS, TOKENS), False, VIEW),
    ],
)
def test_two_groups_of_dims_may_change_places_without_a_copy(
    left: tuple[int, ...], folds: bool, kind: InstructionKind
) -> None:
    program = LocalProgram(values=[LocalValue(INPUT, (), 256, 0, -1)] * 2)
    factor = made(program, gradient_of_a_weight(left), [0, 1], folds=folds)
    assert (factor.kind, factor.inputs, factor.is_moving) == (kind, (0,), kind == FUSIBLE)


@pytest.mark.parametrize(("folds", "source"), [(True, 0), (False, 1)])
def test_a_transpose_of_a_transpose_is_one(folds: bool, source: int) -> None:
    program = LocalProgram(values=[LocalValue(INPUT, (), 256, 0, -1)])
    transposed = program.add(LocalValue(FUSIBLE, (0,), 256, 0, 0, is_moving=True))
    op = gradient_of_a_weight((ROWS, TOKENS, RESULTS))
    factor = made(program, op, [transposed, 0], folds=folds)
    assert (factor.kind, factor.inputs) == (FUSIBLE, (source,))


def test_a_barrier_reads_all_that_passes_and_copies_nothing() -> None:
    program = LocalProgram(
        values=[LocalValue(OPAQUE, (), 64, 0, 0), LocalValue(OPAQUE, (), 32, 1, 1)]
    )
    found = [program.values[v] for v in passed(program, [0, 1], [2, 3], 2)]
    barrier = program.values[2]
    assert (barrier.kind, barrier.inputs, barrier.num_bytes) == (OPAQUE, (0, 1), 0)
    assert [(v.kind, v.inputs, v.tensor) for v in found] == [
        (BARRIER, (0, 2), 2),
        (BARRIER, (1, 2), 3),
    ]
