"""Barriers that stand together: what passes one of them waits for the values of all.

Rematerialised values pass barriers, so that a compiler does not merge them with those of the
forward pass.  What enters a rematerialised block, its cotangent included, passes barriers one
behind the other, one for each value, so that operands share no loop.  They run as one.
"""

from __future__ import annotations

from meshwise.graph.graph import Graph

BARRIER = "optimization_barrier"


def joint_barriers(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return the runs of barriers of which none reads what another one makes.

    Generated values, which are made wherever they are read, are left out.

    Args:
        graph: The graph, or a body.

    Returns:
        For the position of the first barrier of a run the positions of all.
    """
    found: dict[int, tuple[int, ...]] = {}
    run: list[int] = []
    made: set[int] = set()
    for position, op in enumerate(graph.operators):
        if op.kind != BARRIER or not made.isdisjoint(op.inputs):
            if run:
                found[run[0]] = tuple(run)
            run, made = [], set()
        if op.kind == BARRIER and not all(graph.tensors[t].generated for t in op.outputs):
            run.append(position)
            made.update(op.outputs)
    if run:
        found[run[0]] = tuple(run)
    return found
