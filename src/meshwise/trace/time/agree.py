"""When states along the micro-batch axis agree: at operands, at branches, at carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwise.trace.program import Node
from meshwise.trace.time.state import (
    LOCAL,
    PARTIAL,
    SPLIT,
    WHOLE,
    BlockTime,
    L,
    R,
    TimeState,
    split,
)


class NotSeparableError(Exception):
    """An equation that has no form inside the loop; `node` is the culprit."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


def fits(state: TimeState, want: TimeState) -> bool:
    """Return whether a value in `state` can enter as `want` without communication in time."""
    if state == want:
        return True
    if state.kind == WHOLE:
        return want.kind in (SPLIT, PARTIAL)
    if state.kind == LOCAL:
        return want.kind in (WHOLE, SPLIT, PARTIAL)
    return False


def shifted(state: TimeState, by: int) -> TimeState:
    """Return the state of a stacked value (by 1), or of its slices (by -1)."""
    return split(state.dim + by, state.parts) if state.kind == SPLIT else state


def joined(states: Sequence[TimeState], node: Node) -> TimeState:
    """Return the state of a result that several branches make.

    Raises:
        NotSeparableError: there is none.
    """
    found = {state for state in states if state.kind not in (WHOLE, LOCAL)}
    if not found:
        return L if any(state.kind == LOCAL for state in states) else R
    want = min(found, key=lambda state: (state.kind, state.dim, state.parts, state.monoid))
    if any(not fits(state, want) for state in states):
        kinds = " and ".join(sorted({state.kind for state in states}))
        raise NotSeparableError(node, f"leaves a result that is {kinds} in its branches")
    return want


def promote_carries(inner: list[TimeState], results: Mapping[int, TimeState], node: Node) -> bool:
    """Make carry inputs agree with carry outputs; True if a state changed.

    Args:
        inner: States in which operands enter the bodies.
        results: States in which the bodies leave results.
        node: The equation.
    """
    assert node.structure is not None
    changed = False
    for k, j in node.structure.carries:
        before, after = inner[k], results[j]
        if before == after or after.kind == WHOLE:
            continue
        if before.kind == WHOLE or (before.kind == LOCAL and after.kind == LOCAL):
            inner[k] = after
            changed = True
        elif not fits(after, before):
            raise NotSeparableError(
                node, f"carries a value that is {before.kind} at entry and {after.kind} at exit"
            )
    return changed


def promote_wanted(inner: list[TimeState], blocks: Sequence[BlockTime], node: Node) -> bool:
    """Whole operands that every user wants split the same way enter split (rule 5)."""
    assert node.structure is not None
    wanted: dict[int, set[TimeState]] = {}
    for part, block, body in zip(node.structure.parts, blocks, node.bodies, strict=True):
        inside: dict[int, set[TimeState]] = {}
        for equation, decision in zip(body.nodes, block.nodes, strict=True):
            for ident, want in zip(equation.inputs, decision.wants, strict=True):
                inside.setdefault(ident, set()).add(want)
        for ident in body.outputs:
            inside.setdefault(ident, set()).add(R)
        for k, ident in zip(part.operands, body.inputs, strict=True):
            wanted.setdefault(k, set()).update(inside.get(ident, ()))
    changed = False
    for k, wants in wanted.items():
        if inner[k] == R and len(wants) == 1:
            (want,) = wants
            if want.kind == SPLIT:
                inner[k] = want
                changed = True
    return changed
