"""What a device makes of operands before an operator reads them.

Source: XLA dot_decomposer.cc, algebraic_simplifier.cc (merged transposes); compiled programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.graph.graph import Operator
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue, Treatment

_INDEX_BYTES = 4


def rewritten(
    out: LocalProgram,
    op: Operator,
    time: int,
    treated: Treatment,
    operands: Sequence[int],
    *,
    folds_swaps: bool,
) -> list[int]:
    """Return the operands of an operator in the orders of dims in which it reads them.

    Args:
        out: The program, to which copies are added.
        op: The operator.
        time: Its position.
        treated: How the compiler treats it.
        operands: Its operands.
        folds_swaps: Whether two groups of dims may be read the other way round, without a copy.
    """
    found = list(operands)
    for k, kind in treated.rewritten:
        v, made = found[k], out.values[found[k]]
        if folds_swaps and kind == InstructionKind.FUSIBLE:
            if _is_transposed(out, made):
                # Two transposes are one: it reads what the first one reads.
                (v,) = made.inputs
            elif k in treated.swapped:
                kind = InstructionKind.VIEW
        is_moving = kind == InstructionKind.FUSIBLE
        copy = LocalValue(kind, (v,), made.num_bytes, op.inputs[k], time, is_moving=is_moving)
        found[k] = out.add(copy)
    return found


def _is_transposed(out: LocalProgram, made: LocalValue) -> bool:
    """Return whether a value has the elements of its only operand in another order."""
    is_moved = made.kind == InstructionKind.FUSIBLE and made.is_moving and len(made.inputs) == 1
    return is_moved and out.values[made.inputs[0]].num_bytes == made.num_bytes


def beside(
    out: LocalProgram, op: Operator, time: int, treated: Treatment, operands: Sequence[int],
    sizes: tuple[int, int],
) -> list[int]:  # fmt: skip
    """Return what an operator needs beside its operands: dear parts of its result, and indices.

    Args:
        out: The program, to which it is added.
        op: The operator.
        time: Its position.
        treated: How the compiler treats it.
        operands: Its operands.
        sizes: Bytes of its first result, and of an element of its last operand.
    """
    num_bytes, itemsize = sizes
    found: list[LocalValue] = []
    if treated.num_parts:
        kind, inputs = InstructionKind.FUSIBLE, (operands[0],)
        part = LocalValue(kind, inputs, num_bytes, op.outputs[0], time, is_expensive=True)
        found += [part] * treated.num_parts
    if treated.num_indices:
        length = out.values[operands[-1]].num_bytes // itemsize
        size = _INDEX_BYTES * length
        reads = (operands[-1],) if treated.has_late_indices else ()
        index = LocalValue(InstructionKind.OPAQUE, reads, size, op.inputs[-1], time)
        found += [index] * treated.num_indices
    return [out.add(value) for value in found]


def passed(
    out: LocalProgram, operands: Sequence[int], tensors: Sequence[int], time: int
) -> list[int]:
    """Return values once they have passed a barrier, which waits for all of them.

    Args:
        out: The program, to which the barrier is added.
        operands: What passes.
        tensors: For each the tensor that it is from now on.
        time: Position of the barrier.
    """
    barrier = out.add(LocalValue(InstructionKind.OPAQUE, tuple(operands), 0, tensors[0], time))
    return [
        out.add(LocalValue(InstructionKind.BARRIER, (v, barrier), out.values[v].num_bytes, t, time))
        for v, t in zip(operands, tensors, strict=True)
    ]
