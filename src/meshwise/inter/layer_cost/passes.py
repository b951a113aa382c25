"""Seconds of the passes of a planned layer, for one micro-batch."""

from __future__ import annotations

import dataclasses

from meshwise.cluster.mesh import LogicalMesh
from meshwise.intra.price import step_time_s
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.programs import piece_programs
from meshwise.pieces.roles import PieceRoles
from meshwise.pieces.split_backward import split_backward
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


def weight_seconds(
    piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh, backward_s: float
) -> float:
    """Of the backward seconds of one micro-batch those of the gradients of weights.

    Args:
        piece: The layer.
        decision: Its plan.
        mesh: Where it runs.
        backward_s: Of the whole backward pass.
    """
    split = split_backward(piece_programs(PieceRoles(piece, decision, mesh)))
    parts = [
        step_time_s(p.part.graph, p.part.decision, mesh) for p in (split.gradient, split.weights)
    ]
    # Work that both do, and what fuses with neither, is shared out in proportion.
    return backward_s * parts[1] / sum(parts) if sum(parts) else 0.0
