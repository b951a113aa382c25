"""The programs of one layer on the tiles of one device.

Layers are programs of their own.  Activations and cotangents come in as their makers left them on
the same mesh, or as the layer wants them from another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout, local_shape
from meshwise.pieces.programs import PhaseProgram, PiecePrograms, piece_programs
from meshwise.pieces.roles import PieceRoles, Value
from meshwise.plan.decision import GraphDecision
from meshwise.program.names import Name
from meshwise.spmd.part import moved as moved_tile
from meshwise.spmd.part import run_part
from meshwise.trace.layers.planned import PieceProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgram:
    """A program of one device.

    Attributes:
        inputs: What it takes.
        outputs: What it makes.
        donated: Positions of inputs that it overwrites.
        run: Tiles in the order of `inputs` to tiles in the order of `outputs`.
    """

    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    donated: tuple[int, ...]
    run: Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """A layer with its plan.

    Attributes:
        made: The layer as a program.
        decision: Its plan.
        roles: Who is who among its values.
        programs: Its programs.
        entering: Activations that enter, by number of the crossing.
        leaving: Activations that leave, likewise.
    """

    made: PieceProgram
    decision: GraphDecision
    roles: PieceRoles
    programs: PiecePrograms
    entering: tuple[Any, ...]
    leaving: tuple[Any, ...]

    def cotangents_made(self) -> dict[Any, Layout]:
        """Activations that entered whose cotangents the layer makes, and how those lie."""
        found: dict[Any, Layout] = {}
        for value in self.programs.backward.outputs:
            if value.role == "inward":
                found.setdefault(self.entering[value.number], value.layout)
        for enters, leaves in self.roles.passed.items():
            found.setdefault(self.entering[enters], self.layout_of_cotangent(leaves))
        return found

    def early_cotangents(self) -> dict[Any, Layout]:
        """The same of what enters once a step: they are made before the first micro-batch."""
        back = dict(zip(self.made.graph.early, self._entering_once(), strict=True))
        return {
            back[value.number]: value.layout
            for value in self.programs.before.outputs
            if value.role == "output"
        }

    def _entering_once(self) -> list[Any]:
        joint = self.made.joint
        return [v for v in joint.inward if v in joint.once]

    def layout_of_cotangent(self, leaves: int) -> Layout:
        """How the cotangent of an activation that left comes in."""
        return self.decision.inputs[self.made.graph.leaving[leaves].cotangent]


def planned_layer(made: PieceProgram, decision: GraphDecision, mesh: LogicalMesh) -> PlannedLayer:
    """A layer, ready to lower."""
    roles = PieceRoles(made.graph, decision, mesh)
    once, piece = made.joint.once, made.joint.piece
    return PlannedLayer(
        made=made,
        decision=decision,
        roles=roles,
        programs=piece_programs(roles),
        entering=tuple(v for v in piece.entering if v not in once),
        leaving=tuple(v for v in piece.leaving if v not in once),
    )


class LayerLowering:
    """Builds the programs of one layer."""

    def __init__(
        self,
        layer: PlannedLayer,
        mesh: LogicalMesh,
        coming: Mapping[Any, Layout],
        *,
        in_order: bool,
    ) -> None:
        """Begin.

        Args:
            layer: The layer.
            mesh: Where it runs.
            coming: How activations lie that were made on the same mesh.
            in_order: Keep collectives and loops apart by data (`spmd.order`).
        """
        self.layer, self.mesh, self.in_order = layer, mesh, in_order
        self.arrival: dict[Any, Layout] = {}
        for value in layer.roles.value_of_input.values():
            if value.role == "entering":
                v = layer.entering[value.number]
                self.arrival[v] = coming.get(v, value.layout)

    # -- names --------------------------------------------------------------------------------

    def name(self, value: Value) -> Name:
        """The name of a value."""
        layer, n = self.layer, value.number
        made = layer.made
        match value.role:
            case "rows":
                return Name("rows", made.arguments[n], value.layout)
            case "leaving":
                return Name("activation", layer.leaving[n], value.layout)
            case "entering" if self.arrival[layer.entering[n]] == value.layout:
                return Name("activation", layer.entering[n], value.layout)
            case "input":
                parts = [
                    ("argument", made.arguments),
                    ("activation", made.joint.piece.entering),
                    ("joined", made.joint.outward),
                    ("gradient", made.tied),
                    ("value", made.share.values),
                    ("shared", made.share.shared),
                    ("argument", made.whole),
                ]
            case "output":
                parts = [
                    ("result", made.results[: made.num_state]),
                    ("activation", made.joint.piece.leaving),
                    ("cotangent", made.joint.inward),
                    ("gradient", made.sent),
                    ("result", made.results[made.num_state :]),
                    ("sent", [v for phase in made.share.sends for v in phase]),
                    ("activation", made.collected),
                ]
            case _:
                return Name(value.role, n, value.layout)
        for kind, things in parts:
            if n < len(things):
                return Name(kind, things[n], value.layout)
            n -= len(things)
        raise AssertionError(f"{value} is neither argument nor result")

    def _arriving(self, value: Value) -> Name:
        """An activation that enters, as it comes in."""
        v = self.layer.entering[value.number]
        return Name("activation", v, self.arrival[v])

    # -- programs -----------------------------------------------------------------------------

    def before(self, readers: Mapping[Any, Mapping[int, Layout | None]]) -> DeviceProgram:
        """Once a step: casts and gathers of weights, empty sums, cotangents that are known early.

        Args:
            readers: For each activation that leaves once a step the layers that send a cotangent
                of it, and how it comes; None: as it is wanted.
        """
        layer, plain = self.layer, self._plain(self.layer.programs.before)
        graph = layer.made.graph.graph
        totals = {
            name: graph.tensors[graph.inputs[i]]
            for i, layout in enumerate(layer.decision.inputs)
            if (name := self.name(Value("input", i, layout))).kind == "joined"
            and name.what in layer.made.joint.once
        }
        coming = {name: coming_cotangents(name.what, name.layout, readers) for name in totals}
        others = [name for name in plain.inputs if name not in totals]
        inputs = [*(n for names in coming.values() for n in names), *others]

        def run(args: Sequence[Any]) -> list[Any]:
            known = dict(zip(inputs, args, strict=True))
            for name, names in coming.items():
                terms = [(known[n], n.layout) for n in names]
                known[name] = self.total(terms, name.layout, totals[name])
            return [*plain.run([known[n] for n in plain.inputs]), *(known[n] for n in totals)]

        return DeviceProgram(
            inputs=tuple(inputs), outputs=(*plain.outputs, *totals), donated=(), run=run
        )

    def after(self, groups: Sequence[Collection[int]]) -> list[DeviceProgram]:
        """Once a step: for each group of results the program that makes them."""
        return [self._plain(program) for program in self.layer.programs.after(groups)]

    def _plain(self, program: PhaseProgram) -> DeviceProgram:
        return DeviceProgram(
            inputs=tuple(map(self.name, program.inputs)),
            outputs=tuple(map(self.name, program.outputs)),
            donated=tuple(i for i, _ in program.part.graph.aliases),
            run=lambda args: self.run(program, args),
        )

    def run(self, program: PhaseProgram, args: Sequence[Any], *, body: bool = False) -> list[Any]:
        """Run a part on tiles; `body` for a part of the loop's body."""
        made = self.layer.made
        whole = made.program.nodes[made.graph.loop].bodies[0] if body else made.program
        return run_part(whole, program.part, self.mesh, args, in_order=self.in_order)

    def forward(self, read_later: Collection[Any]) -> DeviceProgram:
        """A micro-batch: activations that enter to those that leave, and what is kept.

        Args:
            read_later: Activations that later layers read.
        """
        programs, entering = self.layer.programs, self.layer.entering
        program = programs.forward
        kept = [v for v in programs.kept if self.name(v).kind != "activation"]
        inputs = list(
            dict.fromkeys(
                self._arriving(v) if v.role == "entering" else self.name(v)
                for v in (*program.inputs, *(v for v in kept if v.role == "entering"))
            )
        )
        leaving = [
            v
            for v in program.outputs
            if v.role == "leaving" and self.layer.leaving[v.number] in read_later
        ]

        def run(args: Sequence[Any]) -> list[Any]:
            known = dict(zip(inputs, args, strict=True))

            def given(value: Value) -> Any:
                if value.role != "entering":
                    return known[self.name(value)]
                before = self.arrival[entering[value.number]]
                return self.moved(known[self._arriving(value)], before, value.layout)

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

    def moved(self, value: Any, before: Layout, after: Layout) -> Any:
        """A tile in another layout."""
        parts = [math.prod(self.mesh.sizes[a] for a in axes) for axes in before.dims]
        shape = tuple(n * k for n, k in zip(value.shape, parts, strict=True))
        return moved_tile(value, shape, before, after, self.mesh)

    def total(self, terms: Sequence[tuple[Any, Layout]], wanted: Layout, tensor: Tensor) -> Any:
        """The sum of cotangents in one layout; of none, zeros."""
        if not terms:
            return jnp.zeros(local_shape(tensor.shape, wanted, self.mesh.sizes), tensor.dtype)
        found = [self.moved(value, before, wanted) for value, before in terms]
        return sum(found[1:], found[0])


def coming_cotangents(
    variable: Any, layout: Layout, readers: Mapping[Any, Mapping[int, Layout | None]]
) -> list[Name]:
    """Cotangents of an activation, one from each layer that sends one."""
    return [
        Name("cotangent", (variable, reader), found or layout)
        for reader, found in readers.get(variable, {}).items()
    ]
