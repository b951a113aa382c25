"""Layers planned as a method does: the same network of decisions, made smaller.

A method that divides the batch also fixes how activations cross a cut: by rows, so each cut has
one state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from meshwise.baselines.pipelines.layer_restrictions import (
    expert_zero2,
    expert_zero3,
    megatron_sharded,
)
from meshwise.baselines.restrictions import data_parallel, megatron, zero2, zero3
from meshwise.baselines.roles import InputInfo, input_info
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import PlanError
from meshwise.graph.graph import Graph
from meshwise.inter.layer_cost.boundary import primary
from meshwise.inter.layer_cost.layer_network import LayerNetwork, layer_network
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.options import ALPA, IntraOptions, Restriction
from meshwise.intra.regions import Region
from meshwise.pieces.piece import Crossing, PieceGraph

INTRA_OP, ALPA_INTRA_OP = "IntraOp", "AlpaIntraOp"

RESTRICTIONS: Mapping[str, Callable[[Graph, LogicalMesh, InputInfo], Restriction]] = {
    "DataParallel": data_parallel,
    "Zero2": zero2,
    "Zero3": zero3,
    "Megatron": megatron,
    "MegatronSharded": megatron_sharded,
    "ExpertZero2": expert_zero2,
    "ExpertZero3": expert_zero3,
}
LAYER_METHODS = (*RESTRICTIONS, INTRA_OP, ALPA_INTRA_OP)
# One of these, or what says itself what it takes away from the plans of a layer on a mesh.
LayerMethod: TypeAlias = str | Callable[[PieceGraph, LogicalMesh], Restriction]


def restriction_of(method: LayerMethod, piece: PieceGraph, mesh: LogicalMesh) -> Restriction:
    """Return what a method takes away from the plans of a piece.

    Raises:
        PlanError: there is no such method.
    """
    if not isinstance(method, str):
        return method(piece, mesh)
    if method in (INTRA_OP, ALPA_INTRA_OP):
        return Restriction(name=method)
    if method not in RESTRICTIONS:
        raise PlanError(f"no method {method!r} for layers; known are {', '.join(LAYER_METHODS)}")
    leaving = [c.value for c in piece.leaving]
    info = input_info(piece.graph, piece.batch_dims, leaving)
    return RESTRICTIONS[method](piece.graph, mesh, info)


def restricted_layer(
    method: LayerMethod,
    piece: PieceGraph,
    mesh: LogicalMesh,
    options: IntraOptions,
    *,
    conceded: frozenset[str] = frozenset(),
    parts: tuple[Region, ...] | None = None,
    evaluators: Evaluators | None = None,
) -> LayerNetwork:
    """Return the decisions about one layer on one mesh that a method leaves open.

    Args:
        method: A method.
        piece: The layer.
        mesh: Where it runs; for Megatron axis 0 is data parallel, axis 1 tensor parallel.
        options: As for `layer_network`; its restriction is replaced by the method's.
        conceded: Kinds of collectives that the method forbids and may use all the same.
        parts: The regions of the layer's graph if they are known.
        evaluators: That know what was computed for other layers.

    Raises:
        InfeasibleError: an operator has no strategy on the mesh.
        PlanError: there is no such method.
    """
    restriction = restriction_of(method, piece, mesh)
    restriction = dataclasses.replace(
        restriction,
        forbid=restriction.forbid - conceded,
        forbid_inside=restriction.forbid_inside - conceded,
    )
    objective = ALPA if method == ALPA_INTRA_OP else options.objective
    changed = dataclasses.replace(options, restriction=restriction, objective=objective)
    known = None if parts is None else lambda: parts
    return _with_rows_crossing(layer_network(piece, mesh, changed, known, evaluators), restriction)


def _with_rows_crossing(layer: LayerNetwork, restriction: Restriction) -> LayerNetwork:
    """Return the same with the states of cuts that the restriction asks for."""
    costs = list(layer.problem.costs)
    sides = (
        (layer.entering, _position(layer.piece.entering, enters=True)),
        (layer.leaving, _position(layer.piece.leaving, enters=False)),
    )
    for side, position in sides:
        if side.node >= 0 and position in restriction.pins:
            wanted = restriction.pins[position]
            kept = np.array([layout == wanted for layout in side.layouts])
            costs[side.node] = np.where(kept, costs[side.node], np.inf)
    return layer.with_problem(dataclasses.replace(layer.problem, costs=tuple(costs)))


def _position(crossings: tuple[Crossing, ...], *, enters: bool) -> int:
    """Return the input whose layout is the state of a cut; -1 if there is none."""
    main = primary(crossings)
    if main is None:
        return -1
    return main.value if enters else main.cotangent
