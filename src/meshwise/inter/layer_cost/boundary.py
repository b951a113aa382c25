"""The nodes of a piece's network that decide how activations cross its cuts.

In a network the layout of an activation that enters is a choice of its own, and so is that of one
that leaves; the same goes for the cotangents.  At a cut the largest activation decides: its layout
and that of its cotangent are one choice, the *state* of the cut.  What no gradient flows through
has no cotangent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.network import Edge, LayoutNetwork
from meshwise.intra.ties import Ties
from meshwise.pieces.piece import Crossing, PieceGraph
from meshwise.resharding.between import gather_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One side of a piece.

    Attributes:
        node: Class of the nodes that decide; -1 if nothing crosses.
        layouts: The states; one empty layout if nothing crosses.
    """

    node: int
    layouts: tuple[Layout, ...]


NOTHING = Boundary(node=-1, layouts=(Layout(()),))


def with_boundaries(
    piece: PieceGraph, network: LayoutNetwork
) -> tuple[LayoutNetwork, Ties, Boundary, Boundary]:
    """A network whose states are single choices.

    Returns:
        The network without partial sums at cuts, its ties, what enters and what leaves.
    """
    found: list[tuple[tuple[int, ...], tuple[Layout, ...]]] = []
    asked: dict[int, tuple[Layout, ...]] = {}
    for crossings, enters in ((piece.entering, True), (piece.leaving, False)):
        asked.update(_without_partial(piece, network, crossings, enters=enters))
        main = primary(crossings)
        if main is None:
            found.append(((), ()))
            continue
        given, made = _ends(main, enters=enters)
        layouts = _states(piece, main, network.mesh.sizes, enters=enters)
        nodes = (
            *((_input(piece, network, given),) if given >= 0 else ()),
            *((_result(piece, network, made),) if made >= 0 else ()),
        )
        asked.update(dict.fromkeys(nodes, layouts))
        found.append((nodes, layouts))
    network = with_layouts(network, asked)
    joined = {n: nodes[0] for nodes, _ in found for n in nodes}
    numbers: dict[int, int] = {}
    class_of = tuple(
        numbers.setdefault(joined.get(n, n), len(numbers)) for n in range(len(network.nodes))
    )
    sides = [
        Boundary(node=class_of[nodes[0]], layouts=layouts) if nodes else NOTHING
        for nodes, layouts in found
    ]
    return network, Ties(class_of=class_of, count=len(numbers)), sides[0], sides[1]


def boundary(piece: PieceGraph, sizes: tuple[int, ...], node: int, *, enters: bool) -> Boundary:
    """Return one side of a piece whose network is not at hand.

    Args:
        piece: The piece.
        sizes: Sizes of the axes of its mesh.
        node: Class of the nodes that decide there, as `with_boundaries` found it.
        enters: Whether it is the side of what enters.
    """
    main = primary(piece.entering if enters else piece.leaving)
    if main is None or node < 0:
        return NOTHING
    return Boundary(node=node, layouts=_states(piece, main, sizes, enters=enters))


def _states(
    piece: PieceGraph, main: Crossing, sizes: tuple[int, ...], *, enters: bool
) -> tuple[Layout, ...]:
    ends = piece.graph.inputs if enters else piece.graph.outputs
    return whole_layouts(piece.graph.tensors[ends[main.value]].shape, sizes)


def _without_partial(
    piece: PieceGraph, network: LayoutNetwork, crossings: tuple[Crossing, ...], *, enters: bool
) -> dict[int, tuple[Layout, ...]]:
    """For the nodes of what crosses the layouts that are no partial sums: none crosses a cut."""
    found: dict[int, tuple[Layout, ...]] = {}
    for c in crossings:
        if not c.is_read:
            continue  # A value of the loss: it is summed up, and goes nowhere before.
        given, made = _ends(c, enters=enters)
        nodes = [_input(piece, network, given)] if given >= 0 else []
        nodes += [_result(piece, network, made)] if made >= 0 else []
        for node in nodes:
            layouts = tuple(w for w in network.nodes[node].layouts if not w.partial)
            if layouts:
                found[node] = layouts
    return found


def primary(crossings: tuple[Crossing, ...]) -> Crossing | None:
    """Return the activation whose layout is the state of a cut.

    Args:
        crossings: What crosses the cut.

    Returns:
        The largest one, with a cotangent if any has one; None if no layer next to the cut reads
        one.
    """
    adjacent = [c for c in crossings if c.is_read and c.is_adjacent]
    return max(adjacent, key=lambda c: (c.cotangent >= 0, c.num_bytes), default=None)


def _ends(crossing: Crossing, *, enters: bool) -> tuple[int, int]:
    """Positions among the inputs and among the results, of value and cotangent; -1: not there."""
    value, cotangent = crossing.value, crossing.cotangent
    return (value, cotangent) if enters else (cotangent, value)


def _input(piece: PieceGraph, network: LayoutNetwork, position: int) -> int:
    """The node that decides how an input lies inside the loop."""
    tensor, loop = piece.graph.inputs[position], piece.graph.operators[piece.loop]
    if tensor in loop.inputs:
        return network.boundaries[0, piece.loop, loop.inputs.index(tensor)]
    return network.maker[0, tensor]


def _result(piece: PieceGraph, network: LayoutNetwork, position: int) -> int:
    """The node that decides how a result leaves the loop."""
    tensor, loop = piece.graph.outputs[position], piece.graph.operators[piece.loop]
    if tensor in piece.graph.inputs:  # A cotangent that goes on as it came.
        return _input(piece, network, piece.graph.inputs.index(tensor))
    if tensor not in loop.outputs:
        return network.results[position]
    j = loop.outputs.index(tensor)
    assert loop.structure is not None
    k = loop.structure.carry_of(j)
    return network.boundaries[0, piece.loop, len(loop.inputs) + j if k is None else k]


def with_layouts(network: LayoutNetwork, asked: Mapping[int, tuple[Layout, ...]]) -> LayoutNetwork:
    """A network in which some nodes have other lists of layouts, taken from those they have."""
    places = {
        n: np.array([network.nodes[n].layouts.index(w) for w in layouts], np.intp)
        for n, layouts in asked.items()
    }
    nodes = list(network.nodes)
    for n, places_of in places.items():
        node = nodes[n]
        nodes[n] = dataclasses.replace(
            node, layouts=asked[n], cost_s=node.cost_s[places_of], key=-2 - node.key
        )
    keys: dict[object, int] = {}
    largest = max((e.key for e in network.edges), default=0)
    edges: list[Edge] = []
    for edge in network.edges:
        if edge.source not in places and edge.target not in places:
            edges.append(edge)
            continue
        cost = edge.cost_s
        for axis, n in ((0, edge.source), (1, edge.target)):
            if n in places:
                cost = cost.take(places[n], axis=axis)
        ends = (asked.get(edge.source), asked.get(edge.target))
        key = keys.setdefault((edge.key, ends), largest + 1 + len(keys))
        edges.append(dataclasses.replace(edge, cost_s=cost, key=key))
    return dataclasses.replace(network, nodes=tuple(nodes), edges=tuple(edges))


def gathers_s(
    boundary: Boundary, crossings: tuple[Crossing, ...], mesh: LogicalMesh
) -> NDArray[np.float64]:
    """Seconds that one micro-batch takes in each state of a cut, in one direction.

    Each byte of an activation, and of the cotangent that comes back, crosses once; devices of the
    stage which receives then gather it among themselves and do nothing else meanwhile.  Counted is
    the activation that gives a cut its state; others that cross are left out.

    Source: Alpa section 6 (local all-gather).

    Args:
        boundary: The side of the cut that receives.
        crossings: What crosses there.
        mesh: Of the layer on that side.
    """
    main = primary(crossings)
    if main is None:
        return np.zeros(len(boundary.layouts))
    return np.array([gather_s(main.num_bytes, layout, mesh) for layout in boundary.layouts])
