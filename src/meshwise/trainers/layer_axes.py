"""What each axis of a mesh splits in a layer of a transformer, as trainers split it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from meshwise.baselines.pipelines.layer_restrictions import expert_loops
from meshwise.baselines.restrictions import ALL_TO_ALL
from meshwise.baselines.roles import BATCH, OPTIMIZER, PARAMETER
from meshwise.baselines.weights import tensor_loops
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Operator
from meshwise.graph.layout import Layout, used_axes
from meshwise.graph.light import is_light
from meshwise.graph.loops import NONE
from meshwise.intra.batch_loops import batch_loops, operator_paths
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.options import AllowedChoices, OperatorPath, Restriction
from meshwise.pieces.piece import PieceGraph
from meshwise.trainers.layer_dims import LayerDims, Loops, layer_dims

Role: TypeAlias = Literal["data", "fsdp", "expert", "context", "ring", "tensor"]

_NOTHING = frozenset[int]()
_NOT_SPLIT = frozenset((NONE,))
_OF_ROWS: tuple[Role, ...] = ("data", "fsdp", "expert")
_OF_SEQUENCE: tuple[Role, ...] = ("context", "ring", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAxes:
    """A method for layers: a role for each axis of their mesh.

    Rows are split over the axes `data`, `fsdp` and `expert`, the sequence over `context` and
    `ring`; keys and values are gathered over `context` and go round `ring`.  Over `tensor` products
    are split along weights and heads, and what crosses from layer to layer is split along the
    sequence.  Experts are split over `expert`.

    Attributes:
        roles: For each axis of the mesh.
        sequence: Dim and length of the sequence in what has rows; None if there is none.
        parameters_over: Axes that split parameters, besides those that split products and experts.
        optimizer_over: The same for the state of the optimizer.
    """

    roles: tuple[Role, ...]
    sequence: tuple[int, int] | None = None
    parameters_over: frozenset[Role] = frozenset()
    optimizer_over: frozenset[Role] = frozenset()

    def __call__(self, piece: PieceGraph, mesh: LogicalMesh) -> Restriction:
        """Return which plans of a layer the trainer can express."""
        parts = layer_dims(piece)
        info, graph = parts.info, piece.graph
        pins: dict[int, Layout] = {}
        along: dict[int, int] = {}
        for i, rows in info.batch_dims.items():
            shape = graph.tensors[graph.inputs[i]].shape
            sequence = self._sequence_dim(shape, rows)
            along |= {} if sequence is None else {i: sequence}
            pins[i] = self._batch_layout(shape, rows, sequence, mesh)
        layouts: dict[int, tuple[Layout, ...]] = {}
        for i, role in enumerate(info.roles):
            if role != BATCH:
                shape = graph.tensors[graph.inputs[i]].shape
                layouts[i] = self._state_layouts(shape, role, shape in parts.expert_shapes, mesh)
        has_experts = bool(parts.expert_shapes) and "expert" in self.roles
        forbidden = frozenset[str]() if has_experts else frozenset((ALL_TO_ALL,))
        return Restriction(
            name="trainer",
            pins=pins,
            layouts=layouts,
            allowed=self._allowed(parts, batch_loops(graph, along), mesh),
            forbid=forbidden,
            forbid_inside=forbidden,
        )

    def _axes(self, roles: Sequence[Role] | frozenset[Role]) -> tuple[int, ...]:
        return tuple(a for a, role in enumerate(self.roles) if role in roles)

    def _sequence_dim(self, shape: tuple[int, ...], rows: int) -> int | None:
        """The dim of the sequence in a tensor with rows: the one with its place and length."""
        if self.sequence is None:
            return None
        dim, length = self.sequence
        return dim if dim != rows and shape[dim : dim + 1] == (length,) else None

    def _batch_layout(
        self, shape: tuple[int, ...], rows: int, sequence: int | None, mesh: LogicalMesh
    ) -> Layout:
        dims: list[tuple[int, ...]] = [()] * len(shape)
        dims[rows] = _dividing(shape[rows], self._axes(_OF_ROWS), mesh.sizes)
        if sequence is not None:
            axes = self._axes(_OF_SEQUENCE)
            dims[sequence] = _dividing(shape[sequence], axes, mesh.sizes)
        return Layout(tuple(dims))

    def _state_layouts(
        self, shape: tuple[int, ...], role: str, is_of_experts: bool, mesh: LogicalMesh
    ) -> tuple[Layout, ...]:
        """Layouts of parameters and state: split over all axes that must, and maybe over others."""
        free = {"tensor", "expert"} if is_of_experts else {"tensor"}
        over = {PARAMETER: self.parameters_over, OPTIMIZER: self.optimizer_over}.get(role)
        must = set(self._axes((over or frozenset()) - free))
        may = must | set(self._axes(frozenset[Role](r for r in self.roles if r in free)))
        found = [w for w in whole_layouts(shape, mesh.sizes) if set(used_axes(w)) <= may]
        most = max(len(must & set(used_axes(w))) for w in found)
        return tuple(w for w in found if len(must & set(used_axes(w))) == most)

    def _allowed(
        self, parts: LayerDims, along: Loops, mesh: LogicalMesh
    ) -> dict[OperatorPath, AllowedChoices]:
        allowed: dict[OperatorPath, AllowedChoices] = {}
        for path, op in operator_paths(parts.graph):
            rows, sequence = parts.rows.get(path, _NOTHING), along.get(path, _NOTHING)
            if op.bodies or is_light(op) or not rows | sequence:
                continue
            allowed[path] = tuple(
                self._choices(op, role, size, rows, sequence)
                for role, size in zip(self.roles, mesh.sizes, strict=True)
            )
        return allowed

    def _choices(
        self, op: Operator, role: Role, size: int, rows: frozenset[int], along: frozenset[int]
    ) -> frozenset[int]:
        """Return the loops of an operator that an axis may split.

        In a micro-batch of one row no loop is over rows; there the sequence tells activations from
        weights.
        """
        if size == 1:
            return _NOT_SPLIT
        batch = rows or along
        experts = expert_loops(op, batch) if op.heavy else _NOTHING
        if role in ("data", "fsdp") or (role == "expert" and not experts):
            return rows
        if role == "expert":
            loops = experts
        elif role == "tensor":
            loops = tensor_loops(op, batch) - experts
            if op.rule.dispatch is not None:
                loops -= {op.rule.dispatch.groups}
            if not rows and not op.heavy:
                loops |= along
        elif op.rule.ring is not None and op.rule.ring.loop in along:
            loops = frozenset((op.rule.ring.loop if role == "ring" else op.rule.ring.rows,))
        else:
            loops = along - rows
        fit = frozenset(x for x in loops if op.rule.loops[x].size % size == 0)
        # A lookup or a sort may be done by all; a product is split wherever it can be.
        return fit if op.heavy and fit else fit | _NOT_SPLIT


def _dividing(size: int, axes: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return as many of the axes, from the first, as divide a dim together."""
    used: tuple[int, ...] = ()
    for a in axes:
        if sizes[a] > 1 and size % math.prod(sizes[b] for b in (*used, a)) == 0:
            used = (*used, a)
    return used
