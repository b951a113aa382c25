"""The micro-batch axis through the bodies of `scan`, `cond` and `while`.

The rows of a micro-batch may pass through a body as through any equation.  What decides how often
or which body runs must be equal for all micro-batches, but for loops that `vmap` made: there each
row stops by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwise.graph.loops import NONE
from meshwise.graph.structure import PREDICATE
from meshwise.trace.program import Node
from meshwise.trace.row_loops import stops_by_row
from meshwise.trace.time.agree import (
    NotSeparableError,
    joined,
    promote_carries,
    promote_wanted,
    shifted,
)
from meshwise.trace.time.state import (
    INSIDE_LOOP,
    LOCAL,
    SPLIT,
    WHOLE,
    BlockTime,
    NodeTime,
    R,
    TimeState,
    partial,
)

_UNTIL = "runs until a reduction over the batch says so"


def analyze_bodies(
    node: Node,
    states: Sequence[TimeState],
    analyze_body: Callable[[int, Sequence[TimeState]], BlockTime],
) -> NodeTime | None:
    """Return how an equation with bodies runs inside the loop over micro-batches.

    Args:
        node: The equation.
        states: The states of its operands.
        analyze_body: Analyses one body, given the states of its inputs.

    Returns:
        None if its operands rule that out.

    Raises:
        NotSeparableError: a body has no form inside the loop.
    """
    structure = node.structure
    assert structure is not None
    if any((states[k].kind, states[k].dim) == (SPLIT, 0) for k in structure.stacked_operands):
        return None
    for k in structure.whole_operands:
        _same_for_all(states[k], node)
        if states[k].kind != WHOLE:
            return None
    inner = [shifted(s, -1) if k in structure.stacked_operands else s for k, s in enumerate(states)]
    while True:  # ends: a state only ever goes from whole to something else
        try:
            blocks = [
                analyze_body(p, [inner[k] for k in part.operands])
                for p, part in enumerate(structure.parts)
            ]
        except NotSeparableError as error:
            deciding = [node.bodies[p] for p, _ in structure.makers(PREDICATE)]
            if any(error.node is inner for body in deciding for inner in body.nodes):
                raise NotSeparableError(node, _UNTIL) from None
            raise
        made = {
            j: joined([blocks[p].outputs[n] for p, n in structure.makers(j)], node)
            for j in range(len(node.outputs))
        }
        changed = promote_carries(inner, made, node)
        changed |= promote_wanted(inner, blocks, node)
        if not changed:
            break
    for p, n in structure.makers(PREDICATE):
        _same_for_all(blocks[p].outputs[n], node)
        # The rows of a micro-batch need not wait for those of others.
        is_own = blocks[p].outputs[n] == partial("or") and stops_by_row(node.equation.params)
        if blocks[p].outputs[n].kind != WHOLE and not is_own:
            raise NotSeparableError(node, _UNTIL)
    leaving = {**made, **{j: inner[k] for k, j in structure.carries}, PREDICATE: R}
    return NodeTime(
        region=INSIDE_LOOP,
        choice=NONE,
        wants=tuple(
            shifted(s, 1) if k in structure.stacked_operands else s for k, s in enumerate(inner)
        ),
        results=tuple(
            shifted(leaving[j], 1) if j in structure.stacked_results else leaving[j]
            for j in range(len(node.outputs))
        ),
        bodies=tuple(
            replace(block, outputs=tuple(leaving[j] for j in part.results))
            for part, block in zip(structure.parts, blocks, strict=True)
        ),
    )


def _same_for_all(state: TimeState, node: Node) -> None:
    if state.kind == LOCAL:
        raise NotSeparableError(node, "decides by a statistic of each micro-batch alone")
