"""What planned layers hand to each other in each micro-batch, and how its layout changes.

A value that was made on the same mesh comes as its maker left it, and the layer that reads it
changes its layout.  One that comes from another mesh comes as the first layer wants it that reads
it there, for all of them.

Layers of one mesh that read the same activation of another mesh add up its cotangents one after the
other, in the order of the backward pass; the last of them to run, which is the first of the layers,
sends the sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.pieces.piece import PieceGraph
from meshwise.pieces.programs import PiecePrograms
from meshwise.pieces.roles import PieceRoles
from meshwise.program.names import Activation

# For each activation the layers that send a cotangent of it, and how it comes; None: as wanted.
Readers: TypeAlias = Mapping[Activation, Mapping[int, Layout | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingNames:
    """Which activations cross the cuts of a layer.

    Attributes:
        entering: Those of `PieceGraph.entering`.
        leaving: Those of `PieceGraph.leaving`.
        early: Those whose cotangents are the results `PieceGraph.early`.
        late: Those whose cotangents are the inputs `PieceGraph.late`.
    """

    entering: tuple[Activation, ...]
    leaving: tuple[Activation, ...]
    early: tuple[Activation, ...]
    late: tuple[Activation, ...]

    def renamed(self, names: Mapping[Activation, Activation]) -> CrossingNames:
        """Return the same of an equal layer.

        Args:
            names: For each activation here that of the other layer.
        """
        return CrossingNames(
            entering=tuple(names[a] for a in self.entering),
            leaving=tuple(names[a] for a in self.leaving),
            early=tuple(names[a] for a in self.early),
            late=tuple(names[a] for a in self.late),
        )


class LayoutChange(NamedTuple):
    """A change of layout of a value.

    Attributes:
        tensor: The whole value.
        before: How it lies.
        after: How it shall lie.
    """

    tensor: Tensor
    before: Layout
    after: Layout


class Arrival(NamedTuple):
    """A value of other layers, as it comes to a layer.

    Attributes:
        tensor: The whole value.
        terms: How it comes: an activation once, a cotangent in a term of each layer that read it.
        wanted: The layouts in which it is wanted.
    """

    tensor: Tensor
    terms: tuple[Layout, ...]
    wanted: tuple[Layout, ...]

    @property
    def is_as_wanted(self) -> bool:
        """Whether nothing is to be done: it comes in one piece, in a layout that is wanted."""
        return len(self.terms) == 1 and self.terms[0] in self.wanted

    @property
    def changes(self) -> tuple[LayoutChange, ...]:
        """From each layout in which it comes to each that is wanted; they may be equal."""
        pairs = [(before, after) for after in self.wanted for before in self.terms]
        return tuple(LayoutChange(self.tensor, before, after) for before, after in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerArrivals:
    """What comes to a layer from others.

    Attributes:
        before: Once a step.
        forward: In the forward pass of each micro-batch.
        backward: In its backward pass.
        passing: Cotangents that its backward pass hands on as they are, and how.
        carried: Sums of cotangents to which its backward pass adds its own, and how.
    """

    before: tuple[Arrival, ...]
    forward: tuple[Arrival, ...]
    backward: tuple[Arrival, ...]
    passing: tuple[LayoutChange, ...]
    carried: tuple[LayoutChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEnds:
    """A planned layer between its neighbours.

    Attributes:
        programs: Its programs.
        names: The activations that cross its cuts.
    """

    programs: PiecePrograms
    names: CrossingNames

    @property
    def roles(self) -> PieceRoles:
        """What each of its values is."""
        return self.programs.roles

    @property
    def piece(self) -> PieceGraph:
        """Its graph."""
        return self.roles.piece

    def activations_made(self) -> dict[Activation, Layout]:
        """Return the activations that each micro-batch makes, and how they lie."""
        return {
            self.names.leaving[value.number]: value.layout
            for value in self.programs.forward.outputs
            if value.role == "leaving"
        }

    def cotangents_made(self) -> dict[Activation, Layout]:
        """Return the activations whose cotangents each micro-batch makes, and their layouts."""
        found: dict[Activation, Layout] = {}
        for value in self.programs.backward.outputs:
            if value.role == "inward":
                found.setdefault(self.names.entering[value.number], value.layout)
        for enters, leaves in self.roles.passed.items():
            found.setdefault(self.names.entering[enters], self._wanted(leaves))
        return found

    def early_cotangents(self) -> dict[Activation, Layout]:
        """Return the activations whose cotangents are made before the first micro-batch."""
        named = dict(zip(self.piece.early, self.names.early, strict=True))
        return {
            named[value.number]: value.layout
            for value in self.programs.before.outputs
            if value.role == "output"
        }

    def cotangents_wanted(self) -> dict[int, Layout]:
        """Return how the sums of cotangents are wanted, by number of the activation that left."""
        read = self.programs.backward.inputs
        found = {v.number: v.layout for v in read if v.role == "cotangent"}
        for leaves in self.roles.passed.values():
            found.setdefault(leaves, self._wanted(leaves))
        return found

    def arrival(self, coming: Mapping[Activation, Layout]) -> dict[Activation, Layout]:
        """Return how activations enter.

        Args:
            coming: The layouts of those that are on its mesh before it reads them.
        """
        found: dict[Activation, Layout] = {}
        for value in self.roles.value_of_input.values():
            if value.role == "entering":
                entering = self.names.entering[value.number]
                found[entering] = coming.get(entering, value.layout)
        return found

    def cotangent(self, leaves: int) -> Tensor:
        """Return the cotangent of an activation that left, as a whole value."""
        graph = self.piece.graph
        return graph.tensors[graph.inputs[self.piece.leaving[leaves].cotangent]]

    def entering(self, activation: Activation) -> Tensor:
        """Return an activation that enters, as a whole value; its cotangent has its shape."""
        graph, number = self.piece.graph, self.names.entering.index(activation)
        return graph.tensors[graph.inputs[self.piece.entering[number].value]]

    def arrivals(
        self,
        coming: Mapping[Activation, Layout],
        readers: Readers,
        carried: Mapping[Activation, Layout],
    ) -> LayerArrivals:
        """Return what comes from other layers.

        Args:
            coming: The layouts of activations that are on its mesh before it reads them.
            readers: The layers that send cotangents.
            carried: The layouts of sums of cotangents to which it adds its own.
        """
        wanted, back = self.cotangents_wanted(), self.cotangents_made()
        return LayerArrivals(
            before=tuple(self._arrivals_before(readers)),
            forward=tuple(self._arrivals_forward(coming)),
            backward=tuple(
                _sum_of_terms(
                    self.cotangent(leaves), readers.get(self.names.leaving[leaves], {}), layout
                )
                for leaves, layout in wanted.items()
            ),
            passing=tuple(
                LayoutChange(
                    self.cotangent(leaves), wanted[leaves], back[self.names.entering[enters]]
                )
                for enters, leaves in self.roles.passed.items()
            ),
            carried=tuple(
                LayoutChange(self.entering(activation), layout, back[activation])
                for activation, layout in carried.items()
            ),
        )

    def _arrivals_before(self, readers: Readers) -> Iterator[Arrival]:
        graph = self.piece.graph
        for i, activation in zip(self.piece.late, self.names.late, strict=True):
            tensor, wanted = graph.tensors[graph.inputs[i]], self.roles.decision.inputs[i]
            yield _sum_of_terms(tensor, readers.get(activation, {}), wanted)

    def _arrivals_forward(self, coming: Mapping[Activation, Layout]) -> Iterator[Arrival]:
        arrival = self.arrival(coming)
        wanted: dict[int, list[Layout]] = {}
        for v in dict.fromkeys((*self.programs.forward.inputs, *self.programs.kept)):
            if v.role == "entering":
                wanted.setdefault(v.number, []).append(v.layout)
        for number, layouts in wanted.items():
            activation = self.names.entering[number]
            yield Arrival(self.entering(activation), (arrival[activation],), tuple(layouts))

    def _wanted(self, leaves: int) -> Layout:
        """Return how the cotangent of an activation that left comes in."""
        return self.roles.decision.inputs[self.piece.leaving[leaves].cotangent]


def _sum_of_terms(tensor: Tensor, terms: Mapping[int, Layout | None], wanted: Layout) -> Arrival:
    return Arrival(tensor, tuple(layout or wanted for layout in terms.values()), (wanted,))


class Neighbours:
    """What layers give to each other, and how it lies."""

    def __init__(self, layers: Sequence[LayerEnds], mesh_of: Sequence[Hashable]) -> None:
        """Begin.

        Args:
            layers: All layers, in order.
            mesh_of: For each what is equal for layers on one mesh.
        """
        self.layers, self.mesh_of = layers, mesh_of
        self._maker: dict[Activation, Hashable] = {}
        self._lies: dict[Hashable, dict[Activation, Layout]] = {mesh: {} for mesh in mesh_of}
        for layer, mesh in zip(layers, mesh_of, strict=True):
            for activation, layout in layer.arrival({}).items():
                if activation in self._maker:
                    self._lies[mesh].setdefault(activation, layout)
            self._lies[mesh] |= layer.activations_made()
            self._maker |= dict.fromkeys(layer.activations_made(), mesh)
        made = [layer.cotangents_made() for layer in layers]
        self._sent_back = [
            {**mine, **p.early_cotangents()} for mine, p in zip(made, layers, strict=True)
        ]
        # Sums of cotangents that each layer goes on with, and the layers that begin them.
        self._carried: list[dict[Activation, Layout]] = [{} for _ in layers]
        self._continued = set[tuple[int, Activation]]()
        readers: dict[tuple[Hashable, Activation], list[int]] = {}
        for t, mine in enumerate(made):
            for activation in mine:
                if self._maker.get(activation, mesh_of[t]) != mesh_of[t]:
                    readers.setdefault((mesh_of[t], activation), []).append(t)
        for (_, activation), found in readers.items():
            for t, before in pairwise(found):
                self._carried[t][activation] = made[before][activation]
                self._continued.add((before, activation))

    def coming(self, k: int) -> Mapping[Activation, Layout]:
        """Return how activations lie on the mesh of a layer: as they were made, or as they came."""
        return self._lies[self.mesh_of[k]]

    def is_made_here(self, k: int, activation: Activation) -> bool:
        """Return whether an activation is made on the mesh of a layer."""
        return self._maker.get(activation) == self.mesh_of[k]

    def read_later(self, k: int) -> set[Activation]:
        """Return the activations that later layers read in each micro-batch."""
        return {a for p in self.layers[k + 1 :] for a in p.names.entering}

    def readers(self, k: int) -> Readers:
        """Return the later layers that send cotangents; of those of another mesh the first."""
        found: dict[Activation, dict[int, Layout | None]] = {}
        for t in range(k + 1, len(self.layers)):
            is_here = self.mesh_of[t] == self.mesh_of[k]
            for activation, layout in self._sent_back[t].items():
                if (t, activation) not in self._continued:
                    found.setdefault(activation, {})[t] = layout if is_here else None
        return found

    def carried(self, k: int) -> Mapping[Activation, Layout]:
        """Return the layouts of sums of cotangents to which a layer adds its own."""
        return self._carried[k]

    def arrivals(self, k: int) -> LayerArrivals:
        """Return what comes to a layer from others."""
        return self.layers[k].arrivals(self.coming(k), self.readers(k), self.carried(k))
