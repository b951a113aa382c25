"""What a planned layer of a pipeline does in a step: its programs with how often each runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.arrivals import ArrivalWork
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.programs import piece_programs
from meshwise.pieces.roles import PieceRoles
from meshwise.pieces.split_backward import planned_parts
from meshwise.plan.counts.contents import Argument, arguments
from meshwise.plan.counts.shares import NO_COMMUNICATION, Communication, communication
from meshwise.plan.counts.work import DecidedProgram, Work, work_of, work_together
from meshwise.plan.decision import GraphDecision
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage


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
    parts = planned_parts(programs, splits_backward=splits_backward)
    runs = [
        (parts.before, 1),
        *((program, piece.num_microbatches) for program in parts.passes),
        *((program, 1) for program in parts.once),
    ]
    return work_of(
        [
            DecidedProgram(graph=program.part.graph, decision=program.part.decision, times=times)
            for program, times in runs
        ],
        mesh,
    )


def state_arguments(
    piece: PieceGraph, decision: GraphDecision, moves: Communication = NO_COMMUNICATION
) -> tuple[Argument, ...]:
    """Return the parameters and optimizer state of a layer as they lie.

    Args:
        piece: The layer.
        decision: Its decision.
        moves: Seconds of their changes of layout.
    """
    found = arguments(piece.graph, decision, moves)
    return tuple(found[i] for i in piece.state)


def with_work(
    plan: Plan, graph_of: Callable[[int, Layer], PieceGraph], arrivals: Sequence[ArrivalWork]
) -> Plan:
    """Return a pipeline's plan with what its programs do: collectives, FLOP, replicated work.

    Args:
        plan: The plan, with the decisions about its layers.
        graph_of: Gives the graph that was planned of a layer, by the number of its stage.
        arrivals: For each layer what it does to values of others.
    """
    splits_backward = plan.table().splits_backward
    # Equal layers with one decision on equal meshes do the same.
    known: dict[object, tuple[Work, tuple[Argument, ...]]] = {}
    stages: list[Stage] = []
    works: list[Work] = []
    for number, stage in enumerate(plan.stages):
        found: list[Work] = []
        layers: list[Layer] = []
        for layer in stage.layers:
            key = (layer.equal_to, layer.decision, stage.mesh, stage.remat)
            if key not in known:
                assert layer.decision is not None  # a plan that is made or replayed has all
                piece, decision = graph_of(number, layer), plan.decisions[layer.decision]
                moves = communication(piece.graph, decision, stage.mesh)
                known[key] = (
                    layer_work(piece, decision, stage.mesh, splits_backward=splits_backward),
                    state_arguments(piece, decision, moves),
                )
            work, state = known[key]
            found.extend((arrivals[layer.layer].work, work))
            named = zip(state, layer.arguments, strict=True)
            layers.append(
                replace(layer, arguments=tuple(replace(a, name=b.name) for a, b in named))
            )
        together = work_together(found)
        works.append(together)
        stages.append(
            replace(
                stage,
                layers=tuple(layers),
                dense=together.dense,
                device_flop=together.device_flop,
            )
        )
    return replace(
        plan,
        stages=tuple(stages),
        collectives=tuple(
            replace(item, stage=number)
            for number, work in enumerate(works)
            for item in work.collectives
        ),
        replicated=work_together(works).replicated.shares(),
    )
