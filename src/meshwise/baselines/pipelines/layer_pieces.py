"""Graphs of layers, and their regions, as several methods plan them."""

from __future__ import annotations

from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.layer_cost.layer_network import piece_regions
from meshwise.intra.regions import Region
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.stage import Remat


class LayerPieces:
    """Makes the graph of each layer once.

    Attributes:
        source: The layers.
    """

    def __init__(self, source: LayerSource) -> None:
        """Make no graph yet."""
        self.source = source
        self._known: dict[object, tuple[PieceGraph, tuple[Region, ...]]] = {}

    def of(
        self, layer: int, num_microbatches: int, remat: Remat
    ) -> tuple[PieceGraph, tuple[Region, ...]]:
        """Return the graph of a layer and its regions."""
        key = (layer, num_microbatches, remat)
        if key not in self._known:
            piece = self.source.graph(layer, layer, num_microbatches, remat)
            self._known[key] = (piece, piece_regions(piece))
        return self._known[key]
