"""What graphs that are planned on one mesh share: tables of blocks, costs of resharding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.intra.block_shapes import BlockShapes
from meshwise.intra.tables import Evaluator
from meshwise.resharding.within import cost_matrix


class Evaluators:
    """Evaluators by mesh."""

    def __init__(self) -> None:
        self._known: dict[object, Evaluator] = {}
        self._shapes = BlockShapes()

    def of(self, mesh: LogicalMesh, objective: str, forbid: frozenset[str]) -> Evaluator:
        """The evaluator of a mesh; the other arguments are its own."""
        key = (mesh, objective, forbid)
        if key not in self._known:
            self._known[key] = Evaluator(mesh, objective, forbid, self._shapes)
        return self._known[key]


def resharding_s(
    evaluator: Evaluator,
    tensor: Tensor,
    trips: int,
    left: tuple[Layout, ...],
    wants: tuple[tuple[Layout, ...], ...],
) -> tuple[NDArray[np.float64], object]:
    """Seconds from each layout of `left` to each set of wanted layouts, and their key."""
    numbers = evaluator.layout_keys
    a = numbers.setdefault(left, len(numbers))
    b = numbers.setdefault(wants, len(numbers))
    key = ("edge", evaluator.forbid, tensor.shape, tensor.itemsize, tensor.sharers, trips, a, b)
    if key not in evaluator.matrices:
        rows = list(dict.fromkeys(left))
        columns = list(dict.fromkeys(w for want in wants for w in want))
        base = cost_matrix(
            tensor.shape,
            tensor.itemsize,
            rows,
            columns,
            evaluator.mesh,
            forbid=evaluator.forbid,
            sharers=tensor.sharers,
        )
        base = np.hstack([base, np.zeros((len(rows), 1))])
        row_of = {w: i for i, w in enumerate(rows)}
        column_of = {w: i for i, w in enumerate(columns)}
        width = max((len(want) for want in wants), default=0)
        out = np.zeros((len(left), len(wants)))
        source = np.array([row_of[w] for w in left], dtype=np.intp)
        for place in range(width):
            target = np.array(
                [column_of[w[place]] if place < len(w) else len(columns) for w in wants],
                dtype=np.intp,
            )
            out += base[np.ix_(source, target)]
        # What is forbidden stays so in a loop that never runs.
        evaluator.matrices[key] = out * trips if trips else np.where(np.isinf(out), out, 0.0)
    return evaluator.matrices[key], key
