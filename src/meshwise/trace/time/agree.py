"""When states along the micro-batch axis agree: operands with an equation, carries of a scan."""

from __future__ import annotations

from meshwise.trace.program import Node, Program
from meshwise.trace.time.state import (
    LOCAL,
    PARTIAL,
    SPLIT,
    WHOLE,
    BlockTime,
    R,
    TimeState,
    split,
)


class NotSeparableError(Exception):
    """A scan body that has no form inside the loop; `node` is the culprit."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


def fits(state: TimeState, want: TimeState) -> bool:
    """Whether a value in `state` can enter as `want` without communication in time."""
    if state == want:
        return True
    if state.kind == WHOLE:
        return want.kind in (SPLIT, PARTIAL)
    if state.kind == LOCAL:
        return want.kind in (WHOLE, SPLIT, PARTIAL)
    return False


def shifted(state: TimeState, by: int) -> TimeState:
    """The state of a stacked value (by 1), or of its slices (by -1)."""
    return split(state.dim + by) if state.kind == SPLIT else state


def promote_carries(
    inner: list[TimeState], block: BlockTime, num_consts: int, num_carry: int, node: Node
) -> bool:
    """Make carry inputs agree with carry outputs; True if a state changed."""
    changed = False
    for j in range(num_carry):
        before, after = inner[num_consts + j], block.outputs[j]
        if before == after or after.kind == WHOLE:
            continue
        if before.kind == WHOLE or (before.kind == LOCAL and after.kind == LOCAL):
            inner[num_consts + j] = after
            changed = True
        elif not fits(after, before):
            raise NotSeparableError(
                node, f"carries a value that is {before.kind} at entry and {after.kind} at exit"
            )
    return changed


def promote_wanted(inner: list[TimeState], block: BlockTime, body: Program) -> bool:
    """Whole inputs that every user wants split the same way enter split (rule 5)."""
    wanted: dict[int, set[TimeState]] = {}
    for node, decision in zip(body.nodes, block.nodes, strict=True):
        for ident, want in zip(node.inputs, decision.wants, strict=True):
            wanted.setdefault(ident, set()).add(want)
    for ident in body.outputs:
        wanted.setdefault(ident, set()).add(R)
    changed = False
    for position, ident in enumerate(body.inputs):
        wants = wanted.get(ident, set())
        if inner[position] == R and len(wants) == 1:
            (want,) = wants
            if want.kind == SPLIT:
                inner[position] = want
                changed = True
    return changed
