"""What one device holds for a run of layers in a pipeline.

    resident     parameters, optimizer state, gradients that add up: held all the time
                 (what one program of the update has of another counts as if it were, in the
                 place of sums that no later one reads)
    microbatch   what the backward pass of a micro-batch needs of its forward pass: held for every
                 micro-batch in flight
    weights      where the backward pass is split: what the gradients of weights of a micro-batch
                 need, held from the end of the gradients of its activations
    temporary    what else is live while one of its programs runs

Source: Alpa eq. 5, with what is held once apart from what is held for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.arrival_bytes import NO_ARRIVALS, ArrivalBytes
from meshwise.intra.shapes import local_bytes
from meshwise.memory.peak import peak
from meshwise.memory.targets import memory_model_of
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.programs import PiecePrograms, piece_programs
from meshwise.pieces.roles import PieceRoles, Value
from meshwise.pieces.split_backward import split_backward
from meshwise.plan.decision import GraphDecision
from meshwise.plan.fits import StageBytes

N = TypeVar("N", int, float)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one device.

    Attributes:
        resident_bytes: Held all the time.
        microbatch_bytes: Held for each micro-batch in flight.
        temporary_bytes: On top at the peak.
        weight_bytes: Held for each micro-batch whose gradients of weights are still to come; 0
            where the backward pass is one program.
        gradient_bytes: Of `resident_bytes` what sums of gradients take.
    """

    resident_bytes: int
    microbatch_bytes: int
    temporary_bytes: int
    weight_bytes: int = 0
    gradient_bytes: int = 0

    def peak_bytes(self, in_flight: N, waiting: int = 0) -> N:
        """Return the bytes at the peak.

        Args:
            in_flight: Micro-batches in flight then.
            waiting: Micro-batches that wait for their gradients of weights then.
        """
        held = in_flight * self.microbatch_bytes + waiting * self.weight_bytes
        return self.resident_bytes + held + self.temporary_bytes

    def of_stage(self, state_bytes: int) -> StageBytes:
        """Return what the last look at a plan counts.

        Args:
            state_bytes: Parameters and optimizer state alone.
        """
        return StageBytes(
            state=state_bytes,
            resident=self.resident_bytes,
            microbatch=self.microbatch_bytes,
            weights=self.weight_bytes,
            temporary=self.temporary_bytes,
        )


def joint_footprint(parts: Collection[Footprint]) -> Footprint:
    """Return what a device holds for several layers, of which one program runs at a time.

    Args:
        parts: What it holds for each layer; at least one.
    """
    return Footprint(
        resident_bytes=sum(part.resident_bytes for part in parts),
        microbatch_bytes=sum(part.microbatch_bytes for part in parts),
        temporary_bytes=max(part.temporary_bytes for part in parts),
        weight_bytes=sum(part.weight_bytes for part in parts),
        gradient_bytes=sum(part.gradient_bytes for part in parts),
    )


def handed_bytes(
    update: Sequence[tuple[Mapping[V, int], Mapping[V, int]]],
) -> tuple[int, list[int]]:
    """Return what the programs of an update hold beside what was there.

    A gradient that one of them reduces and hands on takes the place of the sum that it took: the
    two are there at once only in the layer whose program runs.

    Args:
        update: For each of its programs, in order, the sums that it takes and what it hands on,
            with their bytes.

    Returns:
        Bytes that all layers hold at once, and for each program how far it is above them when it
        is done.
    """
    levels, above = [0], list[int]()
    for n, (taken, made) in enumerate(update):
        above.append(levels[-1] + sum(made.values()))
        later = {value for sums, _ in update[n + 1 :] for value in sums}
        done = sum(num_bytes for value, num_bytes in taken.items() if value not in later)
        levels.append(above[-1] - done)
    most = max(levels)
    return most, [max(0, level - most) for level in above]


def crossing_inputs(piece: PieceGraph) -> frozenset[int]:
    """Positions of the inputs that come over a cut."""
    return frozenset(c.value for c in piece.entering) | {c.cotangent for c in piece.leaving}


def passing_results(piece: PieceGraph) -> frozenset[int]:
    """Tensors among the results that go over a cut."""
    outputs = piece.graph.outputs
    leaving = {outputs[c.value] for c in piece.leaving}
    return frozenset(leaving | {outputs[c.cotangent] for c in piece.entering if c.cotangent >= 0})


def footprint(
    piece: PieceGraph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    *,
    splits_backward: bool = False,
    extra: ArrivalBytes = NO_ARRIVALS,
) -> Footprint:
    """What a device holds under a plan of the piece's graph.

    Args:
        piece: The piece.
        decision: Its plan.
        mesh: Where it runs.
        splits_backward: Whether gradients of weights are a program of their own.
        extra: Bytes of values of other layers, beside those that the layer reads.
    """
    roles = PieceRoles(piece, decision, mesh)
    programs = piece_programs(roles)
    split = split_backward(programs) if splits_backward else None

    def num_bytes(value: Value) -> int:
        return _num_bytes(roles, programs, value)

    apart = {*crossing_inputs(piece), *piece.batch_dims}
    if decision.in_host and memory_model_of(mesh.device).has_host_memory:
        apart.update(decision.in_host)
    always = [
        Value("input", i, layout) for i, layout in enumerate(decision.inputs) if i not in apart
    ]
    handed, above = handed_bytes(
        [
            (
                {v: num_bytes(v) for v in program.inputs if v.role == "sum"},
                {v: num_bytes(v) for v in program.outputs if v.role == "border"},
            )
            for program in programs.once
        ]
    )
    resident = sum(map(num_bytes, {*always, *programs.before.outputs})) + handed
    sums = {value for value in programs.before.outputs if value.role == "sum"}
    kept = {*programs.kept, *(v for v in programs.backward.inputs if v.role == "rows")}
    held = sum(map(num_bytes, kept))
    counted = {*always, *programs.before.outputs, *kept}
    temporary = 0
    late = set(() if split is None else split.held)
    runs = [
        (programs.before, counted, extra.before),
        (programs.forward, counted, extra.forward),
        *(
            (program, counted | programs.handed, more)
            for program, more in zip(programs.once, above, strict=True)
        ),
    ]
    if split is None:
        runs.append((programs.backward, counted, extra.backward))
    else:
        # B adds up the terms of a cotangent, even if only W reads the sum.
        terms = (v for v in split.weights.inputs if v.role == "cotangent")
        summed = {v for v in terms if v.number in extra.changed} - set(split.gradient.inputs)
        given = extra.backward + sum(map(num_bytes, summed))
        runs.append((split.gradient, counted, given))
        runs.append((split.weights, counted | late, 0))
    for program, known, given in runs:
        there = {*program.inputs, *program.outputs} & known
        most = peak(program.part.graph, program.part.decision, mesh).num_bytes
        temporary = max(temporary, most + given - sum(map(num_bytes, there)))
    return Footprint(
        resident_bytes=resident,
        microbatch_bytes=held,
        temporary_bytes=max(temporary, 0),
        weight_bytes=sum(map(num_bytes, late)),
        gradient_bytes=sum(map(num_bytes, sums)) + handed,
    )


def _num_bytes(roles: PieceRoles, programs: PiecePrograms, value: Value) -> int:
    """Bytes of a value that is held, on one device; 0 for others."""
    graph, piece = roles.piece.graph, roles.piece
    match value.role:
        case "input" | "rows":
            tensor = graph.tensors[graph.inputs[value.number]]
        case "whole" | "sum":
            tensor = graph.tensors[roles.loop.inputs[value.number]]
        case "border":
            tensor = graph.tensors[value.number]
        case "entering":
            tensor = graph.tensors[graph.inputs[piece.entering[value.number].value]]
        case "cotangent":
            tensor = graph.tensors[graph.inputs[piece.leaving[value.number].cotangent]]
        case "kept":
            tensor = roles.body.tensors[value.number]
        case "delayed":
            tensor = programs.backward.part.graph.tensors[value.number]
        case _:
            return 0
    return local_bytes(tensor, value.layout, roles.mesh.sizes)


def constants_of_loop(piece: PieceGraph) -> list[int]:
    """Positions of the loop's operands that it reads in every micro-batch, cut ones excepted."""
    loop, inputs = piece.graph.operators[piece.loop], piece.graph.inputs
    assert loop.structure is not None
    crossing = {inputs[i] for i in crossing_inputs(piece)}
    return [
        k
        for k, t in enumerate(loop.inputs)
        if loop.structure.carried_result(k) is None
        and k not in loop.structure.stacked_operands
        and t not in crossing
        and not piece.graph.tensors[t].generated
    ]
