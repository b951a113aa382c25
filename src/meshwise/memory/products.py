"""Operators that run inside a dense product or convolution, where a compiler fuses them.

A product computes its operands itself, but for those that several products read and that are
expensive.  Of a chain of values the readers can start from any, so that the narrowest one has a
buffer.

Source: compiled programs (libtpu 0.0.42.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from meshwise.memory.local_program import InstructionKind, LocalValue

_FUSED = (InstructionKind.FUSIBLE, InstructionKind.VIEW)
# A value is as good as another one up to this factor in bytes: statistics are read beside it.
MUCH = 1 + 1 / 64


def epilogues(
    values: Sequence[LocalValue],
    users: Sequence[Sequence[int]],
    leaving: AbstractSet[int],
    rounded: AbstractSet[int],
) -> dict[int, int]:
    """Map each value that is computed only inside its one reader to that reader.

    The scores of a softmax: their product, its conversion to float32 and the reader of that run as
    one instruction with the maximum, the exponentials and their sum, and only the exponentials lie
    in memory.  That is not so where gradients sum over two dims of the softmax, as those of grouped
    queries do: there the scores lie in memory.

    Args:
        values: The values of a program.
        users: The readers of each.
        leaving: Its results.
        rounded: What `rounded_for_products` found.
    """
    found: dict[int, int] = {}
    for v, value in enumerate(values):
        if not value.is_batched:
            continue
        chain = _widened(values, users, leaving, v)
        if chain and _leads_to_rounded(values, users, chain[-1], rounded):
            found |= dict(pairwise(chain))
    return found


def _widened(
    values: Sequence[LocalValue], users: Sequence[Sequence[int]], leaving: AbstractSet[int], v: int
) -> list[int]:
    """Return a value, what converts it to more bytes, moves included, and the reader of that.

    Returns:
        Nothing where one of them, but for the last, has several readers or leaves the program.
    """
    chain = [v]
    while chain[-1] not in leaving and len(users[chain[-1]]) == 1:
        (reader,) = users[chain[-1]]
        made = values[reader]
        if made.kind not in _FUSED or made.is_copy:
            break
        is_wide = values[chain[-1]].num_bytes > values[v].num_bytes
        chain.append(reader)
        if is_wide:
            return chain
        if len(made.inputs) > 1:
            break
    return []


def _leads_to_rounded(
    values: Sequence[LocalValue],
    users: Sequence[Sequence[int]],
    start: int,
    rounded: AbstractSet[int],
) -> bool:
    """Return whether rounded values are computed from one, and no product sums over two dims."""
    found, seen = [start], {start}
    is_rounded = False
    for v in found:
        is_rounded = is_rounded or v in rounded
        for u in users[v]:
            if values[u].is_grouped:
                return False
            if values[u].kind in _FUSED and u not in seen:
                seen.add(u)
                found.append(u)
    return is_rounded


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
    return below > num_bytes * MUCH
