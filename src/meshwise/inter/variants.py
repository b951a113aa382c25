"""Costs of all runs of layers on all submeshes, for one number of micro-batches.

A variant is a way to plan a run on a submesh: a logical mesh, what the backward pass computes
again, and a price of memory.  Layers of one class on one logical mesh are planned once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError
from meshwise.inter.compose import RunCosts, compose
from meshwise.inter.conditioned import (
    ConditionedLayer,
    LayerNetwork,
    MemoryPrice,
    layer_network,
)
from meshwise.inter.piece import PieceGraph, Remat
from meshwise.inter.stage_problem import StageCosts
from meshwise.inter.submeshes import Submesh
from meshwise.intra.options import IntraOptions


class LayerSource(Protocol):
    """Where the graphs of layers come from.

    Attributes:
        classes: For each layer the first one that is equal to it.
    """

    @property
    def classes(self) -> tuple[int, ...]:
        """For each layer the first one that is equal to it."""
        ...

    def graph(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceGraph:
        """The graph to plan of the layers `first` to `last`."""
        ...

    def crossing_bytes(self, layer: int) -> int:
        """Bytes, for the whole batch, of the activations that cross the cut after a layer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to plan a run of layers.

    Attributes:
        mesh: The logical mesh.
        remat: What the backward pass computes again.
        price: Of memory.
    """

    mesh: LogicalMesh
    remat: Remat
    price: MemoryPrice


# A logical mesh of two axes has the plans of one axis, so that one is tried only for primes.
_MAX_AXES = 2


def logical_views(kind: SubmeshKind) -> tuple[LogicalMesh, ...]:
    """The logical meshes of a submesh that are worth a try.

    Across hosts the second axis is a host, or half of one.
    """
    meshes = kind.logical_meshes(_MAX_AXES)
    pairs = [m for m in meshes if len(m.axes) == _MAX_AXES]
    if kind.num_hosts > 1:
        widths = (kind.devices_per_host, kind.devices_per_host // 2)
        pairs = [m for m in pairs if m.sizes[1] in widths] or pairs
    return tuple(pairs or meshes)


class VariantCosts:
    """Plans layers, and remembers what was planned."""

    def __init__(self, source: LayerSource, options: IntraOptions) -> None:
        self.source = source
        self.options = options
        self._networks: dict[object, LayerNetwork | None] = {}
        self._layers: dict[object, ConditionedLayer | None] = {}
        self._costs: dict[object, RunCosts | None] = {}

    def layers(self, variant: Variant, num_microbatches: int) -> list[ConditionedLayer] | None:
        """Every layer under a variant; None if one has no plan."""
        found: list[ConditionedLayer] = []
        for c in self.source.classes:
            layer = self._layer(c, variant, num_microbatches)
            if layer is None:
                return None
            found.append(layer)
        return found

    def _layer(self, c: int, variant: Variant, num_microbatches: int) -> ConditionedLayer | None:
        key = (c, variant, num_microbatches)
        if key not in self._layers:
            place = (c, variant.mesh, variant.remat, num_microbatches)
            if place not in self._networks:
                graph = self.source.graph(c, c, num_microbatches, variant.remat)
                try:
                    self._networks[place] = layer_network(graph, variant.mesh, self.options)
                except InfeasibleError:
                    self._networks[place] = None
            network = self._networks[place]
            self._layers[key] = network and ConditionedLayer(
                network,
                variant.price,
                exact=False,
                time_limit_s=self.options.time_limit_s,
                seed=self.options.seed,
            )
        return self._layers[key]

    def runs(self, variant: Variant, num_microbatches: int) -> RunCosts | None:
        """Costs of all runs of layers under a variant; None if it has none."""
        key = (variant, num_microbatches)
        if key not in self._costs:
            layers = self.layers(variant, num_microbatches)
            self._costs[key] = None if layers is None else compose(layers)
        return self._costs[key]

    def table(
        self,
        submeshes: Sequence[Submesh],
        variants: Sequence[Sequence[Variant]],
        num_microbatches: int,
        report: Callable[[str], object],
    ) -> StageCosts:
        """Costs of every stage.

        Args:
            submeshes: Kinds of submeshes.
            variants: For each of them the ways to plan on it.
            num_microbatches: B.
            report: Is told what is being planned.
        """
        count = len(self.source.classes)
        shape = (count, count, len(submeshes), max(map(len, variants)))
        names = ("microbatch_s", "once_s", "resident_bytes", "microbatch_bytes", "temporary_bytes")
        arrays = {name: np.full(shape, np.inf) for name in names}
        for m, (submesh, ways) in enumerate(zip(submeshes, variants, strict=True)):
            for v, variant in enumerate(ways):
                sizes = "x".join(map(str, variant.mesh.sizes))
                report(f"layers on {submesh} as {sizes}, remat {variant.remat}")
                runs = self.runs(variant, num_microbatches)
                if runs is None:
                    continue
                at = (slice(None), slice(None), m, v)
                arrays["microbatch_s"][at] = runs.loop_s / num_microbatches
                arrays["once_s"][at] = runs.once_s
                for name in names[2:]:
                    arrays[name][at] = getattr(runs, name)
        return StageCosts(submeshes=tuple(submeshes), **arrays)
