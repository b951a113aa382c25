"""What a planned layer of a pipeline does in a step: its programs with how often each runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.arrivals import ArrivalWork
from meshwise.intra.price import other_operators
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.programs import piece_programs
from meshwise.pieces.roles import PieceRoles
from meshwise.pieces.split_backward import planned_parts
from meshwise.plan.counts.contents import (
    Argument,
    OtherOperators,
    arguments,
    dear,
    others_together,
)
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
    return work_of(_programs(piece, decision, mesh, splits_backward), mesh)


def _programs(
    piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh, splits_backward: bool
) -> list[DecidedProgram]:
    programs = piece_programs(PieceRoles(piece, decision, mesh))
    parts = planned_parts(programs, splits_backward=splits_backward)
    runs = [
        (parts.before, 1),
        *((program, piece.num_microbatches) for program in parts.passes),
        *((program, 1) for program in parts.once),
    ]
    return [
        DecidedProgram(graph=program.part.graph, decision=program.part.decision, times=times)
        for program, times in runs
        if times
    ]


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
    known: dict[object, tuple[Work, tuple[OtherOperators, ...], tuple[Argument, ...]]] = {}
    stages: list[Stage] = []
    works: list[Work] = []
    for number, stage in enumerate(plan.stages):
        found: list[Work] = []
        others: list[OtherOperators] = []
        layers: list[Layer] = []
        for layer in stage.layers:
            key = (layer.equal_to, layer.decision, stage.mesh, stage.remat)
            if key not in known:
                assert layer.decision is not None  # a plan that is made or replayed has all
                piece, decision = graph_of(number, layer), plan.decisions[layer.decision]
                moves = communication(piece.graph, decision, stage.mesh)
                programs = _programs(piece, decision, stage.mesh, splits_backward)
                known[key] = (
                    work_of(programs, stage.mesh),
                    tuple(_others(programs, stage.mesh)),
                    state_arguments(piece, decision, moves),
                )
            work, own, state = known[key]
            others.extend(own)
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
                others=dear(others_together(others), plan.step_time_s),
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


def _others(programs: Iterable[DecidedProgram], mesh: LogicalMesh) -> Iterator[OtherOperators]:
    """Yield what takes time besides dense operators, each with all runs of its program."""
    for program in programs:
        for item in other_operators(program.graph, program.decision, mesh):
            yield replace(
                item, count=item.count * program.times, seconds=item.seconds * program.times
            )
