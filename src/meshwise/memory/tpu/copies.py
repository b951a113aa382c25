"""Arguments that XLA:TPU copies, since the result of a gather takes their place.

Others still read the argument when the gather is ordered, so they get a copy, which is made before
the first of them.  (The compiler makes it at the beginning.)

Source: compiled programs (libtpu 0.0.42.1), Wide-ResNet under IntraOp: 98 MiB of copies for 99 MiB
of such results; XLA copy_insertion.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalInstruction,
    LocalValue,
)


def with_copied_arguments(
    program: Instructions, values: Sequence[LocalValue], aliases: Mapping[int, int]
) -> Instructions:
    """Return the program with copies of arguments that the result of a gather overwrites.

    A copy goes by the number of its argument, which its readers know.

    Args:
        program: The instructions.
        values: The values of the program.
        aliases: For a result the argument whose buffer it takes.
    """
    if program.is_body:
        return program
    read = frozenset(b for step in program.steps for b in step.reads)
    copied = [
        argument
        for v, argument in aliases.items()
        if v in program.over_input
        and argument in read
        and values[v].is_sent
        and values[v].kind == InstructionKind.OPAQUE
    ]
    count = len(copied)
    copies = [LocalInstruction(b, (), (), (b,), ()) for b in copied]
    steps = [step._replace(after=tuple(i + count for i in step.after)) for step in program.steps]
    return replace(program, steps=(*copies, *steps))
