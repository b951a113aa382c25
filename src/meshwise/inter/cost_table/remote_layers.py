"""Layers that another process has: what is asked of it, and what stands for a layer here.

Each request is answered by the `VariantCosts` of the other process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.cost_table.variant import LayerKey
from meshwise.inter.layer_cost.layer_network import LayerBounds, LayerFace
from meshwise.inter.layer_cost.run_costs import BoolArray, LayerMatrices
from meshwise.inter.layer_cost.state_costs import Entry, EntryCosts, Place
from meshwise.plan.stage import Remat

Array = NDArray[np.float64]


# A class of layers, what is computed again, B: what a graph of a layer is made for.
GraphKey = tuple[int, Remat, int]


class LayerCosts(Protocol):
    """What answers requests."""

    def layer(self, key: LayerKey) -> LayerMatrices | None:
        """One layer under a variant; None if it has no plan."""
        ...

    def layer_bounds(
        self, c: int, mesh: LogicalMesh, remat: Remat, num_microbatches: int
    ) -> LayerBounds | None:
        """What no plan of a class of layers is below; None if it has none."""
        ...


class Request(Protocol):
    """What is asked."""

    def graphs(self) -> Sequence[GraphKey]:
        """The graphs that the answer needs."""
        ...

    def answer(self, costs: LayerCosts) -> Any:
        """What is sent back."""
        ...


class OtherEnded(Exception):
    """The other process has ended, or cannot be asked."""


class Other(Protocol):
    """The other process."""

    def has(self, layer: int) -> bool:
        """Whether a class of layers is planned there."""
        ...

    def ask(self, request: Request) -> Callable[[], Any]:
        """Begin something; what comes back waits for the answer.

        Raises:
            OtherEnded: it has ended; so does what comes back.
        """
        ...


class AskBounds(NamedTuple):
    """Bounds of layers on a mesh."""

    classes: Sequence[int]
    mesh: LogicalMesh
    remat: Remat
    num_microbatches: int

    def graphs(self) -> Sequence[GraphKey]:
        """As `Request` has it."""
        return [(c, self.remat, self.num_microbatches) for c in self.classes]

    def answer(self, costs: LayerCosts) -> list[LayerBounds | None]:
        """As `Request` has it."""
        return [costs.layer_bounds(c, *self[1:]) for c in self.classes]


class AskFaces(NamedTuple):
    """What neighbours see of layers, and the bounds of their entries; None without a plan."""

    keys: Sequence[LayerKey]

    def graphs(self) -> Sequence[GraphKey]:
        """As `Request` has it."""
        return [(key.layer, key.variant.remat, key.num_microbatches) for key in self.keys]

    def answer(self, costs: LayerCosts) -> list[tuple[LayerFace, Array] | None]:
        """As `Request` has it."""
        found = map(costs.layer, self.keys)
        return [None if layer is None else (layer.face, layer.bound_s) for layer in found]


class _AskPlaces(NamedTuple):
    """Something of entries of a layer that has a face here."""

    what: str
    key: LayerKey
    places: Sequence[Place]

    def graphs(self) -> Sequence[GraphKey]:
        """As `Request` has it."""
        return []

    def answer(self, costs: LayerCosts) -> Any:
        """As `Request` has it."""
        layer = costs.layer(self.key)
        assert layer is not None
        match self.what:
            case "sharpened":
                layer.sharpened(self.places)()
                return [(layer.bound_s[p], layer.is_exact[p]) for p in self.places]
            case "costs":
                # Plans themselves are large.
                entries = layer.entries(self.places)()
                return [None if entry is None else entry.costs for entry in entries]
            case _:
                return layer.entries(self.places)()


class DistantLayer:
    """A layer of the other process.

    Attributes:
        face: What neighbours see of it.
        bound_s: As far as is known here.
        is_exact: As far as is known here.
    """

    def __init__(self, other: Other, key: LayerKey, face: tuple[LayerFace, Array]) -> None:
        """As the other process describes it.

        Args:
            other: The process.
            key: Which layer it is.
            face: What neighbours see of it, and the bounds of its entries.
        """
        self.face, self.bound_s = face
        self.is_exact: BoolArray = np.zeros(self.bound_s.shape, np.bool_)
        self._other, self._key = other, key

    @property
    def is_distant(self) -> bool:
        """Whether another process has it."""
        return True

    def sharpened(self, places: Sequence[Place]) -> Callable[[], object]:
        """As `compose.Layer` has it."""
        end = self._other.ask(_AskPlaces("sharpened", self._key, places))

        def learn() -> None:
            for place, (bound_s, is_exact) in zip(places, end(), strict=True):
                self.bound_s[place], self.is_exact[place] = bound_s, is_exact

        return learn

    def costs(self, places: Sequence[Place]) -> Callable[[], Sequence[EntryCosts | None]]:
        """As `compose.Layer` has it."""
        return self._other.ask(_AskPlaces("costs", self._key, places))

    def entries(self, places: Sequence[Place]) -> Callable[[], Sequence[Entry | None]]:
        """As `compose.Layer` has it."""
        return self._other.ask(_AskPlaces("entries", self._key, places))
