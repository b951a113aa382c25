"""Which dims of a layer are rows, sequence, heads and experts.

Nothing here looks at a name.  The sequence is a dim of activations that products with weights keep,
besides the rows.  Heads are what all tensors of products without weights have in common, besides
the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from meshwise.baselines.pipelines.layer_restrictions import expert_inputs
from meshwise.baselines.roles import InputInfo, input_info
from meshwise.baselines.weights import head_loops, tensors_of
from meshwise.graph.graph import Graph, Operator
from meshwise.intra.batch_loops import batch_loops, operator_paths
from meshwise.intra.options import OperatorPath
from meshwise.pieces.piece import PieceGraph

Loops: TypeAlias = Mapping[OperatorPath, frozenset[int]]

_NOTHING = frozenset[int]()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDims:
    """What the inputs and the loops of a layer are.

    Attributes:
        graph: The layer.
        info: Its inputs.
        rows: For each operator its loops over the rows of the batch.
        expert_shapes: Shapes of parameters with a dim of experts, and that dim.
        forward: Where the operators of the forward pass stand.
    """

    graph: Graph
    info: InputInfo
    rows: Loops
    expert_shapes: Mapping[tuple[int, ...], int]
    forward: frozenset[OperatorPath]

    @property
    def num_experts(self) -> int:
        """A number that divides those of all kinds of experts; 1 where there are none."""
        return math.gcd(*(shape[d] for shape, d in self.expert_shapes.items())) or 1

    @property
    def num_heads(self) -> int:
        """A number that divides those of all kinds of heads; 0 where there are none."""
        return math.gcd(*(size for _, size in self._heads()))

    @property
    def num_attentions(self) -> int:
        """Pairs of products without weights that have heads, in the forward pass; at least 1.

        Attention as one operator is a pair.
        """
        products = {path for path, _ in self._heads() if path in self.forward}
        ops = dict(operator_paths(self.graph))
        return max(1, sum(1 if ops[path].rule.ring is None else 2 for path in products) // 2)

    @property
    def has_rings(self) -> bool:
        """Whether keys of attention can go round."""
        return any(op.rule.ring is not None for _, op in operator_paths(self.graph))

    def _heads(self) -> Iterator[tuple[OperatorPath, int]]:
        """Yield each product that has heads, and the size of each of its loops over heads."""
        for op, rows, path in self._products():
            for loop in head_loops(op, rows):
                yield path, op.rule.loops[loop].size

    @property
    def sequence(self) -> tuple[int, int] | None:
        """Dim and length of what products with weights keep besides the rows; None if nothing."""
        kept = {path: _kept(tensors_of(op), rows) for op, rows, path in self._products()}
        for i, batch_dim in self.info.batch_dims.items():
            for d, length in enumerate(self.graph.tensors[self.graph.inputs[i]].shape):
                if d == batch_dim:
                    continue
                loops = batch_loops(self.graph, {i: d})
                if any(loops.get(path, _NOTHING) & wanted for path, wanted in kept.items()):
                    return d, length
        return None

    def _products(self) -> Iterator[tuple[Operator, frozenset[int], OperatorPath]]:
        for path, op in operator_paths(self.graph):
            if op.heavy and not op.bodies and path in self.rows:
                yield op, self.rows[path], path


def layer_dims(piece: PieceGraph) -> LayerDims:
    """Return what the inputs and the loops of a layer are."""
    graph = piece.graph
    info = input_info(graph, piece.batch_dims, [c.value for c in piece.leaving])
    rows = batch_loops(graph, info.batch_dims)
    shapes = [graph.tensors[t].shape for t in graph.inputs]
    experts = {shapes[i]: d for i, d in expert_inputs(graph, info, rows).items()}
    forward = frozenset((piece.loop, 0, k) for k in piece.forward)
    return LayerDims(graph=graph, info=info, rows=rows, expert_shapes=experts, forward=forward)


def _kept(tensors: list[frozenset[int]], rows: frozenset[int]) -> frozenset[int]:
    """Loops of a product with a weight that run over activations only, rows apart."""
    weights = [loops for loops in tensors if loops and not loops & rows]
    if not weights:
        return _NOTHING
    return _NOTHING.union(*tensors) - rows - _NOTHING.union(*weights)
