"""Values that a compiler keeps in half the bytes, since only products read them.

A TPU rounds float32 factors of products to bfloat16.  XLA:TPU stores what nothing else reads in
bfloat16 in the first place, and gathers it so.

Source: compiled programs (libtpu 0.0.42.1); XLA bfloat16_propagation.cc.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.graph.graph import Tensor
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue

_WIDE, _NARROW_SHARE = "float32", 2


def narrow_factors(program: LocalProgram, tensors: Sequence[Tensor]) -> None:
    """Halve the values that only products read, directly or after a move.

    Args:
        program: The program of one device.
        tensors: The tensors of its graph.
    """
    values, leaving = program.values, frozenset(program.outputs)
    readers: list[list[int]] = [[] for _ in values]
    for v, value in enumerate(values):
        for u in dict.fromkeys(value.inputs):
            readers[u].append(v)
    is_narrow = [False] * len(values)
    for v in range(len(values) - 1, -1, -1):
        value = values[v]
        is_kept = value.kind in (
            InstructionKind.INPUT,
            InstructionKind.INITIAL,
            InstructionKind.PART,
        )
        if is_kept or v in leaving or not readers[v] or value.tensor < 0:
            continue
        if tensors[value.tensor].dtype != _WIDE:
            continue
        is_narrow[v] = all(
            values[u].is_product or (is_narrow[u] and _is_move(values[u])) for u in readers[v]
        )
    for v, value in enumerate(values):
        if is_narrow[v]:
            values[v] = value._replace(num_bytes=value.num_bytes // _NARROW_SHARE, is_narrow=True)


def _is_move(value: LocalValue) -> bool:
    """Return whether a value has only elements of its operand."""
    if len(value.inputs) != 1:
        return False
    if value.kind == InstructionKind.FUSIBLE:
        return value.is_moving
    if value.kind == InstructionKind.OPAQUE:
        return value.is_copy and not value.is_summed
    return value.kind == InstructionKind.VIEW
