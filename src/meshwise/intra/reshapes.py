"""Views that vanish, since XLA computes what they read in the shape of a product.

A product of many dims is computed with three and reshaped.  A step whose operands are all reshaped
so, and scalars, is done before the reshape, if all that reads those operands is such a step; then
the reshape meets the one of the next product, and both are gone.

Source: XLA reshape_mover.cc; without it an activation between two products would be computed once
for each of its readers.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.intra.values import FUSIBLE, OPAQUE, SCALAR_BYTES, VIEW, Values

_MAX_ROUNDS = 8


def vanishing_views(values: Values, users: Sequence[Sequence[int]]) -> frozenset[int]:
    """Views whose reader reads what lies below as it is.

    Args:
        values: Of a program.
        users: Readers of each value.
    """
    shapes = {v: shape for v, shape in values.flat.items() if values.kind[v] == OPAQUE}
    reshaped = set(shapes)
    for _ in range(_MAX_ROUNDS):
        moved = _moved(values, users, reshaped, shapes)
        if not moved:
            break
        for v in moved:
            operands = [u for u in values.inputs[v] if u in reshaped]
            shapes[v] = shapes[operands[0]]
        for v in moved:
            reshaped.difference_update(values.inputs[v])
        reshaped |= moved
    return frozenset(
        w
        for w, shape in values.flat.items()
        if values.kind[w] == VIEW and shapes.get(values.inputs[w][0]) == shape
    )


def _moved(
    values: Values,
    users: Sequence[Sequence[int]],
    reshaped: set[int],
    shapes: dict[int, tuple[int, ...]],
) -> set[int]:
    """Steps that are done before the reshape of all their operands."""

    def is_candidate(v: int) -> bool:
        if values.kind[v] != FUSIBLE or values.is_moving[v]:
            return False
        operands = values.inputs[v]
        wide = [u for u in operands if u in reshaped]
        rest = [u for u in operands if u not in reshaped]
        return len({shapes[u] for u in wide}) == 1 and all(
            values.num_bytes[u] <= SCALAR_BYTES or u in values.splats for u in rest
        )

    def is_gone(w: int, u: int) -> bool:
        return values.kind[w] == VIEW and values.flat.get(w) == shapes[u]

    found = {w for u in reshaped for w in users[u] if is_candidate(w)}
    while True:
        stuck = {u for u in reshaped if any(w not in found and not is_gone(w, u) for w in users[u])}
        kept = {v for v in found if stuck.isdisjoint(values.inputs[v])}
        if kept == found:
            return found
        found = kept
