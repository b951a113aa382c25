"""The networks of layers, with what those of one graph or of one mesh share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.rows_first import has_many_axes, rows_over_first_axis
from meshwise.inter.layer_cost.layer_network import LayerNetwork, layer_network, piece_regions
from meshwise.inter.layer_cost.layer_record import LayerRecord
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.options import IntraOptions
from meshwise.intra.regions import Region
from meshwise.pieces.piece import PieceGraph
from meshwise.system.identity import Same


class LayerNetworks:
    """Builds networks; remembers the regions of graphs and the tables of meshes."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._evaluators = Evaluators()
        self._regions: dict[Same, tuple[Region, ...]] = {}

    def network(
        self,
        piece: PieceGraph,
        mesh: LogicalMesh,
        options: IntraOptions,
        record: LayerRecord | None = None,
    ) -> LayerNetwork | None:
        """Return the decisions about a layer on a mesh.

        Args:
            piece: The layer.
            mesh: Where it runs.
            options: How it is planned.
            record: What is known of it; None: nothing.

        Returns:
            The network; None if the layer has no plan on the mesh.
        """
        if options.rows_first and has_many_axes(mesh) and not options.restriction.name:
            options = replace(options, restriction=rows_over_first_axis(piece, mesh))
        parts = partial(self._parts, piece)
        try:
            return layer_network(piece, mesh, options, parts, self._evaluators, record)
        except InfeasibleError:
            return None

    def _parts(self, piece: PieceGraph) -> tuple[Region, ...]:
        same = Same(piece.graph)
        if same not in self._regions:
            self._regions[same] = piece_regions(piece)
        return self._regions[same]
