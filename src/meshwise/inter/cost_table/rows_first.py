"""Plans on meshes of three axes whose first axis splits rows.

With so many axes there are too many plans to search at every step of a planner.  Where the first
axis has as many devices as a micro-batch has rows, little is lost if it splits nothing else, and a
layer takes hardly longer to plan than on the other two axes.
"""

from __future__ import annotations

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.light import is_light
from meshwise.intra.batch_loops import batch_loops, operator_paths
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.options import Restriction
from meshwise.pieces.piece import PieceGraph

_MOST_AXES = 2


def has_many_axes(mesh: LogicalMesh) -> bool:
    """Return whether a mesh has so many axes that only some plans are searched on it."""
    return len(mesh.axes) > _MOST_AXES


def rows_over_first_axis(piece: PieceGraph, mesh: LogicalMesh) -> Restriction:
    """Return which plans of a layer split rows, where it has some, over the first axis.

    Weights and their state, which have no rows, may be split over it as over any other.

    Args:
        piece: The layer.
        mesh: Where it runs.
    """
    graph, loops = piece.graph, batch_loops(piece.graph, piece.batch_dims)
    free = (None,) * (len(mesh.sizes) - 1)
    return Restriction(
        name="rows first",
        allowed={
            path: (loops[path], *free)
            for path, op in operator_paths(graph)
            if path in loops and not op.bodies and not is_light(op)
        },
        layouts={
            i: tuple(
                layout
                for layout in whole_layouts(graph.tensors[graph.inputs[i]].shape, mesh.sizes)
                if 0 in layout.dims[rows]
            )
            for i, rows in piece.batch_dims.items()
        },
    )
