"""Where XLA:TPU moves instructions once they are in order.

Source: compiled programs (libtpu 0.0.42.1): weights are gathered before anything else runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.memory.local_program import InstructionKind, Instructions, LocalValue
from meshwise.memory.order import dependences


def gathers_first(
    program: Instructions, values: Sequence[LocalValue], order: Sequence[int]
) -> list[int]:
    """Return an order in which collectives that need only arguments run first.

    Args:
        program: The instructions.
        values: The values of the program.
        order: Positions of the instructions, in an order in which they could run.
    """
    before = dependences(program).before
    is_early = [False] * len(before)
    for i in order:
        value = values[program.steps[i].value]
        is_light = value.kind in (InstructionKind.FUSIBLE, InstructionKind.VIEW)
        is_gather = value.kind == InstructionKind.OPAQUE and value.is_copy and not value.sum_axes
        is_early[i] = (is_light or is_gather) and all(is_early[j] for j in before[i])
    first: set[int] = set()
    for i in reversed(order):
        value = values[program.steps[i].value]
        if is_early[i] and (value.kind == InstructionKind.OPAQUE or i in first):
            first |= {i, *before[i]}
    return [*(i for i in order if i in first), *(i for i in order if i not in first)]
