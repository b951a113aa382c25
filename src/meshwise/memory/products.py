"""Operators that run inside a dense product or convolution, where a compiler fuses them.

A product computes its operands itself, but for those that several products read and that are
expensive.  Of a chain of values the readers can start from any, so that the narrowest one has a
buffer.

Source: compiled programs (libtpu 0.0.42.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from meshwise.memory.local_program import InstructionKind, LocalValue

_FUSED = (InstructionKind.FUSIBLE, InstructionKind.VIEW)
# A value is as good as another one up to this factor in bytes: statistics are read beside it.
_MUCH = 1 + 1 / 64


def epilogues(
    values: Sequence[LocalValue],
    users: Sequence[Sequence[int]],
    leaving: AbstractSet[int],
    rounded: AbstractSet[int],
) -> dict[int, int]:
    """Map each value that is computed only inside its one reader to that reader.

    The scores of a softmax that one product reads: their product, its conversion to float32 and
    the reader of that run as one instruction, and only what that makes lies in memory.

    Args:
        values: The values of a program.
        users: The readers of each.
        leaving: Its results.
        rounded: What `rounded_for_products` found.
    """
    found: dict[int, int] = {}
    for v, value in enumerate(values):
        if not value.is_batched or v in leaving or len(users[v]) != 1:
            continue
        (wide,) = users[v]
        made = values[wide]
        is_converted = made.kind == InstructionKind.FUSIBLE and not (made.is_moving or made.is_copy)
        is_wider = made.num_bytes > value.num_bytes and len(made.inputs) == 1
        if not (is_converted and is_wider) or wide in leaving or len(users[wide]) != 1:
            continue
        (end,) = users[wide]
        is_fusible = values[end].kind == InstructionKind.FUSIBLE
        if is_fusible and _num_readers(values, users, end, rounded) == 1:
            found |= {v: wide, wide: end}
    return found


def _num_readers(
    values: Sequence[LocalValue],
    users: Sequence[Sequence[int]],
    start: int,
    rounded: AbstractSet[int],
) -> int:
    """Return how many values read the rounded values that are computed from one."""
    found, seen = [start], {start}
    count = 0
    for v in found:
        if v in rounded:
            count += len(users[v])
            continue
        for u in users[v]:
            if values[u].kind in _FUSED and u not in seen:
                seen.add(u)
                found.append(u)
    return count


def rounded_for_products(
    values: Sequence[LocalValue], users: Sequence[Sequence[int]]
) -> frozenset[int]:
    """Return the values that are rounded to fewer bytes for batched products.

    Only those count whose computation repeats something expensive, as the exponentials of a
    softmax.

    Args:
        values: The values of a program.
        users: The readers of each.
    """
    return frozenset(v for v in range(len(values)) if _is_rounded_for(values, v, users))


def _is_rounded_for(values: Sequence[LocalValue], v: int, users: Sequence[Sequence[int]]) -> bool:
    value = values[v]
    if value.kind != InstructionKind.FUSIBLE or value.is_moving or len(value.inputs) != 1:
        return False
    (source,) = value.inputs
    if values[source].num_bytes <= value.num_bytes:
        return False
    moved, seen = [v], {v}
    for u in moved:
        for reader in users[u]:
            if values[reader].is_batched:
                return _is_dear(values, source)
            is_move = values[reader].kind == InstructionKind.VIEW or values[reader].is_moving
            if is_move and reader not in seen:
                seen.add(reader)
                moved.append(reader)
    return False


def _is_dear(values: Sequence[LocalValue], v: int) -> bool:
    """Return whether computing a value repeats something expensive as large as it."""
    size, stack, seen = values[v].num_bytes, [v], {v}
    while stack:
        value = values[stack.pop()]
        if value.kind not in _FUSED or value.num_bytes < size:
            continue
        if value.is_expensive:
            return True
        stack += [u for u in value.inputs if u not in seen]
        seen.update(value.inputs)
    return False


def narrowest_bytes(values: Sequence[LocalValue]) -> list[int]:
    """Return the least bytes from which each value can be computed, fusible values included."""
    least: list[int] = []
    found: list[int] = []
    for value in values:
        size = value.num_bytes
        below = sum(least[u] for u in dict.fromkeys(value.inputs))
        is_computed = value.kind in _FUSED and bool(value.inputs)
        found.append(below if is_computed else size)
        least.append(min(size, below) if is_computed else size)
    return found


def is_narrower(below: int, num_bytes: int) -> bool:
    """Return whether a value has fewer bytes than that from which it can be computed.

    Args:
        below: Bytes from which it can be computed.
        num_bytes: Its own.
    """
    return below > num_bytes * _MUCH
