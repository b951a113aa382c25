"""Layouts that a user fixes by name, in the planning of layers.

Each layer gets the pins that name something in it.  Where pins do not fit a mesh (an axis that it
has not, a dim that it does not divide) the layer has no plan on that mesh, so that stages which
hold it lie on others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError, PinError
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.variant import LayerKey, Variant
from meshwise.inter.cost_table.variant_costs import LayerTimes, VariantCosts
from meshwise.inter.layer_cost.run_costs import RunCosts, compose
from meshwise.inter.layer_cost.state_costs import ConditionedLayer
from meshwise.intra.options import IntraOptions
from meshwise.kernels.arrays import Bools
from meshwise.pieces.neighbours import CrossingNames
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.stage import Remat
from meshwise.request.pins import (
    ACTIVATION,
    as_pin,
    check_rank,
    is_hit,
    named_operators,
    pinned,
    refuse_unmatched,
)
from meshwise.trace.layers.layering import Layering


class PinnedSource:
    """The layers of a step, of which only those are equal that have the same pins."""

    def __init__(self, layers: Layering, pins: Mapping[str, object]) -> None:
        """Find out what is pinned where.

        Raises:
            PinError: a pattern names nothing in the step, or an activation of fewer dims.
        """
        self.layers = layers
        names = [layers.argument_names(k) for k in range(len(layers.classes))]
        shapes = [dict(layers.activations(k)) for k in range(len(layers.classes))]
        arguments, activations = layers.split.names, sorted({n for some in shapes for n in some})
        for pattern, pin in pins.items():
            hit = [name for name in activations if is_hit(pattern, name, activation=True)]
            if not hit and not any(is_hit(pattern, name, activation=False) for name in arguments):
                refuse_unmatched(pattern, arguments, activations)
            for name in hit:
                shape = next(some[name] for some in shapes if name in some)
                check_rank(pattern, as_pin(pattern, pin), f"{ACTIVATION}{name}", shape)
        first: dict[object, int] = {}

        def hits(name: str, activation: bool) -> tuple[object, ...]:
            return tuple(pin for p, pin in pins.items() if is_hit(p, name, activation))

        self._classes = tuple(
            first.setdefault(
                (
                    c,
                    tuple(hits(name, activation=False) for name in names[k]),
                    tuple(hits(name, activation=True) for name in shapes[k]),
                ),
                k,
            )
            for k, c in enumerate(layers.classes)
        )

    @property
    def classes(self) -> tuple[int, ...]:
        """For each layer the first one that is equal to it and has the same pins."""
        return self._classes

    def graph(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceGraph:
        """The graph to plan of the layers `first` to `last`."""
        return self.layers.graph(first, last, num_microbatches, remat)

    def crossing_names(self, layer: int) -> CrossingNames:
        """The activations that cross the cuts of a layer."""
        return self.layers.crossing_names(layer)

    def argument_names(self, layer: int) -> list[str]:
        """Names of the step's arguments that the graph of a layer takes, in its order."""
        return self.layers.argument_names(layer)

    def state_names(self, layer: int) -> tuple[str, ...]:
        """Names of parameters and optimizer state, in the order of `PieceGraph.state`."""
        return self.layers.state_names(layer)

    def crossing_bytes(self, layer: int) -> int:
        """Bytes, for the whole batch, of the activations that cross the cut after a layer."""
        return self.layers.crossing_bytes(layer)


class PinnedCosts(VariantCosts):
    """Plans layers as pins say.

    Attributes:
        refused: Why pins do not fit meshes.
    """

    is_shareable = False

    def __init__(
        self,
        source: PinnedSource,
        options: IntraOptions,
        pins: Mapping[str, object],
        times: LayerTimes | None = None,
        records: LayerRecords | None = None,
    ) -> None:
        super().__init__(source, options, times, records)
        self.pins = pins
        self.refused: list[str] = []

    def restricted(self, piece: PieceGraph, mesh: LogicalMesh) -> tuple[PieceGraph, IntraOptions]:
        """A layer and how it is planned on a mesh.

        Raises:
            InfeasibleError: the pins do not fit the mesh.
        """
        graph = piece.graph
        names = [graph.tensors[i].name for i in graph.inputs]
        named = [of.tensors[op.outputs[0]].name for _, of, op in named_operators(graph)]
        pins = {
            pattern: pin
            for pattern, pin in self.pins.items()
            if any(is_hit(pattern, name, activation=False) for name in names)
            or any(is_hit(pattern, name, activation=True) for name in named)
        }
        if not pins:
            return piece, self.options
        try:
            held = pinned(graph, pins, mesh)
        except PinError as error:
            self.refused.append(str(error))
            raise InfeasibleError(str(error)) from error
        options = dataclasses.replace(
            self.options, layouts=held.layouts, strategies=held.strategies
        )
        return dataclasses.replace(piece, graph=held.graph), options

    def layers(self, variant: Variant, num_microbatches: int) -> list[ConditionedLayer] | None:
        """Every layer under a variant; None if none has a plan.

        In place of a layer without a plan stands another: no stage on this variant holds it.
        """
        found = self._each(variant, num_microbatches)
        some = next((layer for layer in found if layer is not None), None)
        return None if some is None else [layer or some for layer in found]

    def _composed(self, variant: Variant, count: int, wanted: Bools) -> RunCosts | None:
        return _of_segments(self._each(variant, count), wanted)

    def _each(self, variant: Variant, num_microbatches: int) -> list[ConditionedLayer | None]:
        keys = [LayerKey(c, variant, num_microbatches) for c in self.source.classes]
        return [self.layer(key) for key in keys]


def _of_segments(layers: list[ConditionedLayer | None], wanted: Bools) -> RunCosts | None:
    """Costs of the runs between layers without a plan; infinite for all others."""
    count = len(layers)
    gaps = [-1, *(k for k, layer in enumerate(layers) if layer is None), count]
    names = [f.name for f in dataclasses.fields(RunCosts)]
    out = {name: np.full((count, count), np.inf) for name in names}
    if len(gaps) == count + 2:
        return None
    for before, after in itertools.pairwise(gaps):
        segment = [layer for layer in layers[before + 1 : after] if layer is not None]
        if segment:
            at = slice(before + 1, after)
            costs = compose(segment, wanted[at, at])
            for name in names:
                out[name][at, at] = getattr(costs, name)
    return RunCosts(**out)
