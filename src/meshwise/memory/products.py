"""What is computed together with dense products and convolutions, where a compiler does that.

A product computes its operands itself, where they are not dear and rounded for several products.
Of a chain of values the readers can start from any, so that the narrowest one has a buffer.

Source: compiled programs (libtpu 0.0.42.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.memory.local_program import InstructionKind, LocalValue

_FUSED = (InstructionKind.FUSIBLE, InstructionKind.VIEW)
# A value is as good as another one up to this factor in bytes: statistics are read beside it.
_MUCH = 1 + 1 / 64


def epilogues(values: Sequence[LocalValue], users: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return for values that are only computed with their reader that reader.

    A product, its conversion to more bytes and what alone reads that are one instruction, where a
    softmax follows that a single product reads: then the wide values lie in memory.
    """
    found: dict[int, int] = {}
    for v, value in enumerate(values):
        if not value.is_product or len(users[v]) != 1:
            continue
        (wide,) = users[v]
        made = values[wide]
        is_wider = made.num_bytes > value.num_bytes and len(made.inputs) == 1
        if not is_wider or made.is_moving or len(users[wide]) != 1:
            continue
        (end,) = users[wide]
        if values[end].kind == InstructionKind.FUSIBLE and _num_readers(values, users, end) == 1:
            found |= {v: wide, wide: end}
    return found


def _num_readers(values: Sequence[LocalValue], users: Sequence[Sequence[int]], start: int) -> int:
    """Return how many values read what is rounded for batched products below a value."""
    found, seen = [start], {start}
    count = 0
    for v in found:
        if is_rounded_for(values, v, users):
            count += len(users[v])
            continue
        for u in users[v]:
            if values[u].kind in _FUSED and u not in seen:
                seen.add(u)
                found.append(u)
    return count


def is_rounded_for(values: Sequence[LocalValue], v: int, users: Sequence[Sequence[int]]) -> bool:
    """Return whether a value is something dear, rounded for batched products."""
    value = values[v]
    if value.kind != InstructionKind.FUSIBLE or value.is_moving or len(value.inputs) != 1:
        return False
    (source,) = value.inputs
    if values[source].num_bytes <= value.num_bytes or not _is_dear(values, source):
        return False
    readers = [v]
    for u in readers:
        for reader in users[u]:
            if values[reader].is_batched:
                return True
            if values[reader].kind == InstructionKind.VIEW or values[reader].is_moving:
                readers.append(reader)
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
