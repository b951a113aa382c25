"""What a planned layer of a pipeline does in a step: its programs with how often each runs."""

from __future__ import annotations

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.piece import PieceGraph
from meshwise.inter.piece_roles import PieceRoles
from meshwise.inter.programs import piece_programs
from meshwise.inter.split_backward import split_backward
from meshwise.plan.contents import Argument, arguments
from meshwise.plan.decision import GraphDecision
from meshwise.plan.shares import communication
from meshwise.plan.work import DecidedProgram, Work, work_of


def layer_work(
    piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh, *, splits_backward: bool
) -> Work:
    """Return what a layer does in a step, all its micro-batches together.

    Args:
        piece: The layer.
        decision: Its decision.
        mesh: Where it runs.
        splits_backward: Whether gradients of weights are a program of their own.
    """
    programs = piece_programs(PieceRoles(piece, decision, mesh))
    backward = [programs.backward]
    if splits_backward:
        split = split_backward(programs)
        backward = [split.gradient, split.weights]
    count = piece.num_microbatches
    runs = [
        (programs.before, 1),
        (programs.forward, count),
        *((program, count) for program in backward),
        *((program, 1) for program in programs.after([programs.final])),
    ]
    return work_of(
        [
            DecidedProgram(graph=program.part.graph, decision=program.part.decision, times=times)
            for program, times in runs
        ],
        mesh,
    )


def state_arguments(
    piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh
) -> tuple[Argument, ...]:
    """Return the parameters and optimizer state of a layer as they lie, without their names.

    Args:
        piece: The layer.
        decision: Its decision.
        mesh: Where it runs.
    """
    moves = communication(piece.graph, decision, mesh)
    found = arguments(piece.graph, decision, moves)
    return tuple(found[i] for i in piece.state)
