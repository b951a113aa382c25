"""Seconds of the forward and of the backward pass of a planned layer, for one micro-batch."""

from __future__ import annotations

import dataclasses

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.piece import PieceGraph
from meshwise.intra.price import step_time_s
from meshwise.plan.decision import GraphDecision


def pass_seconds(
    piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh, loop_s: float
) -> tuple[float, float]:
    """Forward and backward seconds of one micro-batch; together those of the plan.

    Args:
        piece: The layer.
        decision: Its plan.
        mesh: Where it runs.
        loop_s: Seconds of all micro-batches of a step.
    """
    body = piece.graph.operators[piece.loop].bodies[0]
    inner = decision.operators[piece.loop].bodies[0]
    ahead = step_time_s(
        dataclasses.replace(
            body, operators=tuple(body.operators[i] for i in piece.forward), outputs=(), aliases=()
        ),
        GraphDecision(
            inputs=inner.inputs,
            operators=tuple(inner.operators[i] for i in piece.forward),
            outputs=(),
        ),
        mesh,
    )
    once = loop_s / piece.num_microbatches
    ahead = min(ahead, once)
    return ahead, once - ahead
