"""Bytes that each choice of a piece's network holds: the part of memory that is a sum of choices.

It is what `inter.layer_cost.footprint` counts, written as a function of the choices: inputs,
accumulators and what the loop reads of weights by their layouts, residuals by the layouts in which
their operators leave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwise.inter.layer_cost.footprint import (
    constants_of_loop,
    crossing_inputs,
    passing_results,
)
from meshwise.inter.layer_cost.recomputation import repeated
from meshwise.inter.layer_cost.residual_bytes import BodyBytes
from meshwise.intra.network import LayoutNetwork
from meshwise.intra.shapes import local_bytes
from meshwise.intra.ties import Ties
from meshwise.kernels.arrays import Floats
from meshwise.pieces.phases import read_backward
from meshwise.pieces.piece import PieceGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of one device by choice of each class of nodes.

    Attributes:
        resident: Held all the time.
        microbatch: Held for each micro-batch in flight.
        copies: Pairs of classes (u, v), u < v, and the bytes that each pair of choices holds all
            the time: weights that are gathered for the loop.
        kept_copies: The same of what each pair holds for each micro-batch in flight.
    """

    resident: tuple[Floats, ...]
    microbatch: tuple[Floats, ...]
    copies: dict[tuple[int, int], Floats]
    kept_copies: dict[tuple[int, int], Floats]


def resident_bytes(piece: PieceGraph, network: LayoutNetwork, ties: Ties) -> tuple[Floats, ...]:
    """`HeldBytes.resident` alone."""
    return _by_class(_of_inputs(piece, network)[0], ties)


def repeated_bytes(piece: PieceGraph, network: LayoutNetwork, ties: Ties) -> tuple[Floats, ...]:
    """Bytes that a device reads and writes once more for each micro-batch, by choice.

    They are not held: the backward pass repeats work (`inter.layer_cost.recomputation`).
    """
    again = _nothing(network)
    for node, num_bytes in BodyBytes(piece, network).made(repeated(piece).tensors):
        again[node] += num_bytes
    return _by_class(again, ties)


def scratch_by_choice(network: LayoutNetwork, ties: Ties) -> tuple[Floats, ...]:
    """Bytes that operators hold for themselves while they run, by choice; not all at once."""
    made = _nothing(network)
    for region in network.regions:
        for number, block in enumerate(region.blocks.blocks):
            if any(region.graph.operators[i].scratch is not None for i in block.members):
                node = network.block_nodes[region.index, number]
                made[node] += network.scratch_bytes(region, number)
    return _by_class(made, ties)


def held_bytes(piece: PieceGraph, network: LayoutNetwork, ties: Ties) -> HeldBytes:
    """Bytes of one device for each choice of each class of nodes."""
    resident, microbatch = _of_inputs(piece, network)
    pairs: list[tuple[int, int, Floats]] = []
    for u, v, num_bytes in BodyBytes(piece, network).kept():
        if v < 0:
            microbatch[u] += num_bytes
        else:
            pairs.append((u, v, num_bytes))
    return HeldBytes(
        resident=_by_class(resident, ties),
        microbatch=_by_class(microbatch, ties),
        copies=_pairs_by_class(_copies(piece, network), ties),
        kept_copies=_pairs_by_class(pairs, ties),
    )


def _nothing(network: LayoutNetwork) -> list[Floats]:
    return [np.zeros(len(node.cost_s)) for node in network.nodes]


def _copies(piece: PieceGraph, network: LayoutNetwork) -> Iterator[tuple[int, int, Floats]]:
    """Inputs that the loop reads in another layout than they have."""
    graph, sizes = piece.graph, network.mesh.sizes
    loop = graph.operators[piece.loop]
    for k in constants_of_loop(piece):
        t = loop.inputs[k]
        if t not in graph.inputs:
            continue
        u, v = network.maker[0, t], network.boundaries[0, piece.loop, k]
        given, wanted = network.nodes[u].layouts, network.nodes[v].layouts
        num_bytes = [float(local_bytes(graph.tensors[t], w, sizes)) for w in wanted]
        yield (
            u,
            v,
            np.array(
                [
                    [0.0 if g == w else b for w, b in zip(wanted, num_bytes, strict=True)]
                    for g in given
                ]
            ),
        )


def _of_inputs(piece: PieceGraph, network: LayoutNetwork) -> tuple[list[Floats], list[Floats]]:
    """Resident bytes of each choice of each node, and those of the batch's rows."""
    resident, microbatch = _nothing(network), _nothing(network)
    graph, sizes = piece.graph, network.mesh.sizes
    loop = graph.operators[piece.loop]
    assert loop.structure is not None

    def add(to: list[Floats], node: int, t: int) -> None:
        layouts = network.nodes[node].layouts
        to[node] += [local_bytes(graph.tensors[t], w, sizes) for w in layouts]

    crossing, apart = crossing_inputs(piece), network.inputs_apart
    for i, t in enumerate(graph.inputs):
        if i not in crossing and i not in piece.batch_dims and t not in apart:
            add(resident, network.maker[0, t], t)
    passing = passing_results(piece)
    for k, j in loop.structure.carries:
        if loop.outputs[j] not in passing:
            add(resident, network.boundaries[0, piece.loop, k], loop.outputs[j])
    made: set[int] = set(graph.inputs)
    for k in constants_of_loop(piece):
        t = loop.inputs[k]
        if t not in made:
            # Made before the loop, as a cast of weights.
            add(resident, network.boundaries[0, piece.loop, k], t)
            made.add(t)
    inside = dict(zip(loop.structure.parts[0].operands, loop.bodies[0].inputs, strict=True))
    read = read_backward(piece)
    for i in set(piece.batch_dims) - crossing:
        t = graph.inputs[i]
        if t not in loop.inputs:
            continue
        k = loop.inputs.index(t)
        if inside.get(k) in read:
            add(microbatch, network.boundaries[0, piece.loop, k], t)
    return resident, microbatch


def _pairs_by_class(
    pairs: Iterable[tuple[int, int, Floats]], ties: Ties
) -> dict[tuple[int, int], Floats]:
    """Bytes by pairs of nodes as bytes by pairs of classes."""
    found: dict[tuple[int, int], Floats] = {}
    for u, v, num_bytes in pairs:
        a, b = ties.class_of[u], ties.class_of[v]
        if a > b:
            a, b, num_bytes = b, a, num_bytes.T
        found[a, b] = found[a, b] + num_bytes if (a, b) in found else num_bytes
    return found


def _by_class(values: list[Floats], ties: Ties) -> tuple[Floats, ...]:
    found: list[Floats | None] = [None] * ties.count
    for value, c in zip(values, ties.class_of, strict=True):
        before = found[c]
        found[c] = value if before is None else before + value
    return tuple(v for v in found if v is not None)
