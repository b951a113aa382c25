"""The programs of one layer on the tiles of one device.

Layers are programs of their own.  Activations and cotangents come in as their makers left them on
the same mesh, or as the layer wants them from another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout, local_shape
from meshwise.pieces.neighbours import LayerEnds, Readers
from meshwise.pieces.programs import PhaseProgram, piece_programs
from meshwise.pieces.roles import PieceRoles, Value
from meshwise.plan.decision import GraphDecision
from meshwise.program.names import (
    Activation,
    CotangentTerm,
    Local,
    MicrobatchIndex,
    Name,
    Rows,
    StepArgument,
    StepValue,
)
from meshwise.spmd.part import moved as moved_tile
from meshwise.spmd.part import run_part
from meshwise.trace.layers.planned import PieceProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgram:
    """A program of one device.

    Attributes:
        inputs: Names of its inputs.
        outputs: Names of its outputs.
        donated: Positions of inputs that it overwrites.
        run: A function from tiles in the order of `inputs` to tiles in the order of `outputs`.
        in_host: Positions of inputs that lie in the memory of the host.
        out_host: Positions of outputs that go there.
    """

    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    donated: tuple[int, ...]
    run: Callable[[Sequence[Array]], list[Array]]
    in_host: tuple[int, ...] = ()
    out_host: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer(LayerEnds):
    """A layer with its plan.

    Attributes:
        made: The layer as a program.
    """

    made: PieceProgram


def planned_layer(made: PieceProgram, decision: GraphDecision, mesh: LogicalMesh) -> PlannedLayer:
    """Divide a planned layer into programs.

    Args:
        made: The layer as a program.
        decision: Its plan.
        mesh: The mesh of the plan.

    Returns:
        The layer, ready to lower.
    """
    programs = piece_programs(PieceRoles(made.graph, decision, mesh))
    return PlannedLayer(programs=programs, names=made.names, made=made)


class LayerLowering:
    """Builds the programs of one layer."""

    def __init__(
        self,
        layer: PlannedLayer,
        mesh: LogicalMesh,
        coming: Mapping[Activation, Layout],
        carried: Mapping[Activation, Layout],
        *,
        in_order: bool,
    ) -> None:
        """Begin.

        Args:
            layer: The layer.
            mesh: The mesh on which it runs.
            coming: The layouts of activations that are on its mesh before it reads them.
            carried: The layouts of sums of cotangents to which its backward pass adds its own.
            in_order: Keep collectives and loops apart by data (`spmd.order`).
        """
        self.layer, self.mesh, self.in_order = layer, mesh, in_order
        self.inputs, self.results = layer.made.inputs.in_order(), layer.made.results.in_order()
        self.arrival = layer.arrival(coming)
        self.carried = carried

    # -- names --------------------------------------------------------------------------------

    def name(self, value: Value) -> Name:
        """Return the name of a value."""
        return Name(self._step_value(value), value.layout)

    def _step_value(self, value: Value) -> StepValue:
        layer, n = self.layer, value.number
        match value.role:
            case "input":
                return self.inputs[n]
            case "output":
                return self.results[n]
            case "rows":
                rows = self.inputs[n]
                assert isinstance(rows, StepArgument)
                return Rows(rows.number)
            case "index":
                return MicrobatchIndex()
            case "leaving":
                return layer.names.leaving[n]
            case "entering" if self.arrival[layer.names.entering[n]] == value.layout:
                return layer.names.entering[n]
            case "cotangent" | "inward":
                raise AssertionError(f"{value} goes through the sum of its terms")
            case role:
                return Local(role, n)

    def _arriving(self, value: Value) -> Name:
        """Return an activation that enters, as it comes in."""
        entering = self.layer.names.entering[value.number]
        return Name(entering, self.arrival[entering])

    def _arrived(self, value: Value, tile: Array) -> Array:
        """Return an activation that enters in the layout that the layer reads."""
        arrival = self.arrival[self.layer.names.entering[value.number]]
        return self.moved(tile, arrival, value.layout)

    # -- programs -----------------------------------------------------------------------------

    def before(self, readers: Readers) -> DeviceProgram:
        """Once a step: casts and gathers of weights, empty sums, cotangents that are known early.

        Args:
            readers: For each activation that leaves once a step the layers that send a cotangent
                of it, and how it comes; None: as it is wanted.
        """
        layer, plain = self.layer, self._plain(self.layer.programs.before)
        graph = layer.piece.graph
        totals: dict[Name, Tensor] = {}
        coming: dict[Name, list[Name]] = {}
        for i, activation in zip(layer.piece.late, layer.names.late, strict=True):
            layout = layer.roles.decision.inputs[i]
            name = Name(self.inputs[i], layout)
            totals[name] = graph.tensors[graph.inputs[i]]
            coming[name] = coming_cotangents(activation, layout, readers)
        others = [name for name in plain.inputs if name not in totals]
        inputs = [*(n for names in coming.values() for n in names), *others]

        def run(args: Sequence[Array]) -> list[Array]:
            known = dict(zip(inputs, args, strict=True))
            for name, names in coming.items():
                terms = [(known[n], n.layout) for n in names]
                known[name] = self.total(terms, name.layout, totals[name])
            return [*plain.run([known[n] for n in plain.inputs]), *(known[n] for n in totals)]

        return DeviceProgram(
            inputs=tuple(inputs), outputs=(*plain.outputs, *totals), donated=(), run=run
        )

    def once(self) -> tuple[DeviceProgram, ...]:
        """Once a step, after all micro-batches, one after the other."""
        return tuple(map(self._plain, self.layer.programs.once))

    def _plain(self, program: PhaseProgram) -> DeviceProgram:
        in_host = program.part.decision.in_host
        return DeviceProgram(
            inputs=tuple(map(self.name, program.inputs)),
            outputs=tuple(map(self.name, program.outputs)),
            donated=tuple(i for i, _ in program.part.graph.aliases),
            run=lambda args: self.run(program, args),
            in_host=in_host,
            out_host=tuple(j for i, j in program.part.graph.aliases if i in in_host),
        )

    def run(
        self, program: PhaseProgram, args: Sequence[Array], *, body: bool = False
    ) -> list[Array]:
        """Run a part on tiles; `body` for a part of the loop's body."""
        made = self.layer.made
        whole = made.program.nodes[made.graph.loop].bodies[0] if body else made.program
        return run_part(whole, program.part, self.mesh, args, in_order=self.in_order)

    def forward(self, read_later: Collection[Activation]) -> DeviceProgram:
        """Return a micro-batch: activations that enter to those that leave, and what is kept.

        Args:
            read_later: Activations that later layers read.
        """
        programs, names = self.layer.programs, self.layer.names
        program = programs.forward
        kept = [v for v in programs.kept if not isinstance(self.name(v).value, Activation)]
        taken = (*program.inputs, *(v for v in kept if v.role == "entering"))
        entering = dict.fromkeys(v for v in taken if v.role == "entering")
        inputs = list(
            dict.fromkeys(self._arriving(v) if v in entering else self.name(v) for v in taken)
        )
        leaving = [
            v
            for v in program.outputs
            if v.role == "leaving" and names.leaving[v.number] in read_later
        ]

        def run(args: Sequence[Array]) -> list[Array]:
            known = dict(zip(inputs, args, strict=True))

            def given(value: Value) -> Array:
                return arrived[value] if value in arrived else known[self.name(value)]

            arrived = {v: self._arrived(v, known[self._arriving(v)]) for v in entering}
            results = self.run(program, [given(v) for v in program.inputs], body=True)
            made = dict(zip(program.outputs, results, strict=True))
            return [made[v] if v in made else given(v) for v in (*leaving, *kept)]

        return DeviceProgram(
            inputs=tuple(inputs),
            outputs=tuple(map(self.name, (*leaving, *kept))),
            donated=(),
            run=run,
        )

    # -- values -------------------------------------------------------------------------------

    def moved(self, value: Array, before: Layout, after: Layout) -> Array:
        """Return a tile in another layout."""
        parts = [math.prod(self.mesh.sizes[a] for a in axes) for axes in before.dims]
        shape = tuple(n * k for n, k in zip(value.shape, parts, strict=True))
        return moved_tile(value, shape, before, after, self.mesh)

    def total(self, terms: Sequence[tuple[Array, Layout]], wanted: Layout, tensor: Tensor) -> Array:
        """Return the sum of cotangents in one layout; of none, zeros."""
        if not terms:
            return jnp.zeros(local_shape(tensor.shape, wanted, self.mesh.sizes), tensor.dtype)
        found = [self.moved(value, before, wanted) for value, before in terms]
        return sum(found[1:], found[0])


def coming_cotangents(activation: Activation, layout: Layout, readers: Readers) -> list[Name]:
    """Name the cotangents of an activation, one from each layer that sends one.

    Args:
        activation: The activation.
        layout: The layout in which its cotangent is wanted.
        readers: The layers that send cotangents.

    Returns:
        The names.
    """
    return [
        Name(CotangentTerm(activation, reader), found or layout)
        for reader, found in readers.get(activation, {}).items()
    ]
