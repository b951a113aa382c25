"""What layers do to values that come from other layers on their mesh: they change layouts.

The state of a cut is the layout of one activation there, and needs no change.  Other values, as
those that skip layers, come as their makers left them, or as the first layer on the mesh wanted
them.  The search does not see what this takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.inter.layer_cost.arrival_bytes import ArrivalBytes, arrival_bytes
from meshwise.intra.price import step_time_s
from meshwise.pieces.neighbours import (
    Arrival,
    CrossingNames,
    LayerArrivals,
    LayerEnds,
    LayoutChange,
    Neighbours,
)
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.programs import PiecePrograms, piece_programs
from meshwise.pieces.roles import PieceRoles
from meshwise.plan.counts.work import DecidedProgram, Work, work_of
from meshwise.plan.decision import GraphDecision, Use
from meshwise.plan.stage import Layer, Stage
from meshwise.system.identity import Same

# What a plan says of where these collectives come from.
_WHERE = "value of another layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWork:
    """What a layer does to values of other layers on its mesh.

    Attributes:
        work: In a step, all micro-batches together.
        extra: Bytes of a device that it takes.
        once_s: Seconds before the first micro-batch.
        forward_s: Seconds in the forward pass of a micro-batch.
        backward_s: Seconds in the backward pass of a micro-batch.
    """

    work: Work
    extra: ArrivalBytes
    once_s: float
    forward_s: float
    backward_s: float


def planned_neighbours(
    stages: Sequence[Stage],
    mesh_of: Sequence[Hashable],
    decisions: Sequence[GraphDecision],
    graph_of: Callable[[int, Layer], PieceGraph],
    names_of: Callable[[int], CrossingNames],
) -> Neighbours:
    """Return what the layers of planned stages give to each other.

    Args:
        stages: The stages; together they hold every layer once, in order.
        mesh_of: For each what is equal for stages on one mesh.
        decisions: Those that layers name.
        graph_of: Gives the graph that was planned of a layer, by the number of its stage.
        names_of: Gives the activations that cross the cuts of a layer.
    """
    numbered = [(s, layer) for s, stage in enumerate(stages) for layer in stage.layers]
    # Equal layers with one decision on equal meshes have the same programs.
    programs: dict[object, PiecePrograms] = {}
    ends: list[LayerEnds] = []
    for s, layer in numbered:
        key = (layer.equal_to, layer.decision, stages[s].mesh, stages[s].remat)
        if key not in programs:
            assert layer.decision is not None  # a plan that is made or replayed has all
            decision = decisions[layer.decision]
            programs[key] = piece_programs(PieceRoles(graph_of(s, layer), decision, stages[s].mesh))
        ends.append(LayerEnds(programs=programs[key], names=names_of(layer.layer)))
    return Neighbours(ends, [mesh_of[s] for s, _ in numbered])


def arrival_works(neighbours: Neighbours) -> tuple[ArrivalWork, ...]:
    """Return for each layer what it does to values of other layers on its mesh.

    Args:
        neighbours: What the layers give to each other.
    """
    known: dict[object, ArrivalWork] = {}
    found: list[ArrivalWork] = []
    for k, layer in enumerate(neighbours.layers):
        arrivals, mesh = neighbours.arrivals(k), layer.roles.mesh
        key = (arrivals, mesh, Same(layer.programs))
        if key not in known:
            known[key] = _arrival_work(arrivals, layer, mesh)
        found.append(known[key])
    return tuple(found)


def _arrival_work(arrivals: LayerArrivals, layer: LayerEnds, mesh: LogicalMesh) -> ArrivalWork:
    count = layer.piece.num_microbatches
    runs = [
        _changing(_changes(arrivals.before), 1),
        _changing(_changes(arrivals.forward), count),
        _changing([*_changes(arrivals.backward), *arrivals.passing, *arrivals.carried], count),
    ]
    once_s, forward_s, backward_s = (step_time_s(run.graph, run.decision, mesh) for run in runs)
    work = work_of(runs, mesh)
    named = tuple(replace(item, where=_WHERE) for item in work.collectives)
    return ArrivalWork(
        work=replace(work, collectives=named),
        extra=arrival_bytes(arrivals, layer, mesh),
        once_s=once_s,
        forward_s=forward_s,
        backward_s=backward_s,
    )


def _changes(arrivals: Sequence[Arrival]) -> list[LayoutChange]:
    return [change for arrival in arrivals for change in arrival.changes]


def _changing(changes: Sequence[LayoutChange], times: int) -> DecidedProgram:
    """Return a program that changes layouts and does nothing else."""
    changes = [change for change in changes if change.before != change.after]
    values = tuple(range(len(changes)))
    return DecidedProgram(
        graph=Graph(
            tensors=tuple(c.tensor for c in changes), operators=(), inputs=values, outputs=values
        ),
        decision=GraphDecision(
            inputs=tuple(c.before for c in changes),
            operators=(),
            outputs=tuple(Use(group=0, via=c.before, layout=c.after) for c in changes),
        ),
        times=times,
    )
