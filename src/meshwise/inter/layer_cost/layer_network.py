"""All decisions about one layer on one mesh, what they cost, and what no plan is below.

Source: docs/decisions/0011; the bound is that of `assignment.bounds.messages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.conditional import ConditionalBounds
from meshwise.assignment.problem import Problem
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.inter.layer_cost.boundary import Boundary, boundary, gathers_s, with_boundaries
from meshwise.inter.layer_cost.choice_bytes import (
    HeldBytes,
    held_bytes,
    repeated_bytes,
    resident_bytes,
    scratch_by_choice,
)
from meshwise.inter.layer_cost.footprint import Footprint, footprint
from meshwise.inter.layer_cost.layer_record import Choice, LayerBounds, LayerRecord, PlanFacts
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.expand import expand
from meshwise.intra.network import BLOCK, INPUT, LayoutNetwork, build_network
from meshwise.intra.options import ALPA, IntraOptions
from meshwise.intra.regions import Region, regions
from meshwise.intra.ties import Ties, tied_problem
from meshwise.kernels.arrays import Floats
from meshwise.pieces.phases import program_cuts
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision


class Decisions(NamedTuple):
    """All decisions about a layer, and what they cost.

    Attributes:
        network: The decisions; states of cuts are single choices.
        ties: Nodes that decide together.
        again_s: Seconds of one micro-batch by choice of each class of nodes, for work that the
            backward pass repeats.
        problem: Seconds of a step.
    """

    network: LayoutNetwork
    ties: Ties
    again_s: tuple[Floats, ...]
    problem: Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNetwork:
    """All decisions about one layer on one mesh, and what they cost and hold.

    Two networks are equal only if they are one object.  There are no slots, since what is dear is
    computed when it is first asked for: where the record knows enough, nobody asks.

    Attributes:
        piece: The layer.
        mesh: Where it runs.
        entering: Its side of the cut before it.
        leaving: Its side of the cut after it.
        arriving_s: For each state that enters, seconds of one micro-batch to put an activation
            together that another stage sends.
        returning_s: The same of a cotangent, for each state that leaves.
        make: Function that makes the decisions.
        record: What was found out about the layer on the mesh.
    """

    piece: PieceGraph
    mesh: LogicalMesh
    entering: Boundary
    leaving: Boundary
    arriving_s: Floats
    returning_s: Floats
    make: Callable[[], Decisions]
    record: LayerRecord
    _decisions: dict[Choice, GraphDecision] = field(
        default_factory=dict[Choice, GraphDecision], init=False, repr=False
    )

    @cached_property
    def _made(self) -> Decisions:
        return self.make()

    @property
    def network(self) -> LayoutNetwork:
        """Its decisions; states of cuts are single choices."""
        return self._made.network

    @property
    def ties(self) -> Ties:
        """Nodes that decide together."""
        return self._made.ties

    @property
    def again_s(self) -> tuple[Floats, ...]:
        """Seconds of one micro-batch by choice of each class of nodes, for repeated work."""
        return self._made.again_s

    @property
    def problem(self) -> Problem:
        """Seconds of a step."""
        return self._made.problem

    def with_problem(
        self, problem: Problem, again_s: tuple[Floats, ...] | None = None
    ) -> LayerNetwork:
        """Return the same decisions at other costs.

        Args:
            problem: Seconds of a step.
            again_s: Seconds of repeated work, if they are others too.
        """
        made = self._made._replace(
            problem=problem, again_s=self.again_s if again_s is None else again_s
        )
        return replace(self, make=lambda: made, record=LayerRecord())

    def facts(self, choice: Choice) -> PlanFacts:
        """Return what the plan of a choice takes and holds; found out once.

        Args:
            choice: A choice for each class of nodes.
        """
        known = self.record.plans
        if choice not in known:
            self.keep(choice, footprint(self.piece, self.decision(choice), self.mesh))
        return known[choice]

    def knows(self, choice: Choice) -> bool:
        """Return whether what the plan of a choice takes and holds is known."""
        return choice in self.record.plans

    def keep(self, choice: Choice, memory: Footprint) -> None:
        """Take what the plan of a choice holds."""
        loop_s, once_s = _seconds(self.network, self.ties.spread(choice))
        again_s = sum(s[c] for s, c in zip(self.again_s, choice, strict=True))
        loop_s += self.piece.num_microbatches * float(again_s)
        self.record.plans[choice] = PlanFacts(loop_s=loop_s, once_s=once_s, memory=memory)

    def decision(self, choice: Choice) -> GraphDecision:
        """The plan of a choice for each class of nodes; made once."""
        if choice not in self._decisions:
            self._decisions[choice] = expand(self.network, self.ties.spread(choice))
        return self._decisions[choice]

    @cached_property
    def held(self) -> HeldBytes:
        """Bytes by choice: dear, and only prices of memory ask for it."""
        return held_bytes(self.piece, self.network, self.ties)

    @cached_property
    def scratch(self) -> tuple[Floats, ...]:
        """Bytes by choice that operators hold while they run: prices of memory ask for it too."""
        return scratch_by_choice(self.network, self.ties)


def piece_regions(piece: PieceGraph) -> tuple[Region, ...]:
    """Return the regions of a layer's graph, which several programs run.

    Args:
        piece: The layer.
    """
    return regions(piece.graph, program_cuts(piece))


def layer_network(
    piece: PieceGraph,
    mesh: LogicalMesh,
    options: IntraOptions,
    parts: Callable[[], tuple[Region, ...]] | None = None,
    evaluators: Evaluators | None = None,
    record: LayerRecord | None = None,
) -> LayerNetwork:
    """The decisions about one layer on one mesh.

    Args:
        piece: The layer.
        mesh: The mesh.
        options: Of planning.
        parts: Gives the regions of the layer's graph if they are known.
        evaluators: That know what was computed for other layers.
        record: What is known of this layer with these options on this mesh.

    Raises:
        InfeasibleError: an operator has no strategy on the mesh.
    """
    record = record or LayerRecord()
    if record.is_possible is False:
        raise InfeasibleError("an operator of the layer has no strategy on the mesh")

    def make() -> tuple[Decisions, Boundary, Boundary]:
        found = piece_regions(piece) if parts is None else parts()
        network, ties, entering, leaving = with_boundaries(
            piece, build_network(piece.graph, mesh, options, found, evaluators)
        )
        rate = math.inf if options.objective == ALPA else mesh.device.memory_bytes_per_s
        again_s = tuple(num_bytes / rate for num_bytes in repeated_bytes(piece, network, ties))
        problem = _repeating(tied_problem(network, ties), again_s, piece.num_microbatches)
        return Decisions(network, ties, again_s, problem), entering, leaving

    if record.nodes is None:
        try:
            made, entering, leaving = make()
        except InfeasibleError:
            record.is_possible = False
            raise
        record.is_possible, record.nodes = True, (entering.node, leaving.node)
        decisions = partial(_same, made)
    else:
        sizes = mesh.sizes
        entering = boundary(piece, sizes, record.nodes[0], enters=True)
        leaving = boundary(piece, sizes, record.nodes[1], enters=False)

        def decisions() -> Decisions:
            return make()[0]

    return LayerNetwork(
        piece=piece,
        mesh=mesh,
        entering=entering,
        leaving=leaving,
        arriving_s=gathers_s(entering, piece.entering, mesh),
        returning_s=gathers_s(leaving, piece.leaving, mesh),
        make=decisions,
        record=record,
    )


def _same(made: Decisions) -> Decisions:
    return made


def _repeating(problem: Problem, again_s: tuple[Floats, ...], num_microbatches: int) -> Problem:
    """A problem with the time of repeated work."""
    pairs = zip(problem.costs, again_s, strict=True)
    return replace(problem, costs=tuple(cost + num_microbatches * s for cost, s in pairs))


def layer_bounds(layer: LayerNetwork) -> LayerBounds:
    """Bounds of time by messages, of bytes by what each decision holds at least; found out once."""
    if layer.record.bounds is None:
        layer.record.bounds = _bounds(layer)
    return layer.record.bounds


def _bounds(layer: LayerNetwork) -> LayerBounds:
    count = layer.piece.num_microbatches
    problem = tied_problem(layer.network, layer.ties, only_loops=True)
    problem = _repeating(problem, layer.again_s, count)

    def least(amounts: Sequence[Floats]) -> float:
        pairs = zip(amounts, problem.costs, strict=True)
        return float(sum(a[np.isfinite(c)].min(initial=np.inf) for a, c in pairs))

    return LayerBounds(
        loop_s=ConditionalBounds(problem, (layer.entering.node, layer.leaving.node)).of_all_pairs(),
        arriving_s=count * layer.arriving_s,
        returning_s=count * layer.returning_s,
        resident_bytes=least(resident_bytes(layer.piece, layer.network, layer.ties)),
    )


def _seconds(network: LayoutNetwork, choice: tuple[int, ...]) -> tuple[float, float]:
    """Seconds inside and outside of loops."""
    spent = [0.0, 0.0]
    for node, c in zip(network.nodes, choice, strict=True):
        if node.kind == BLOCK:
            spent[node.ref[0] > 0] += float(node.cost_s[c])
        elif node.kind == INPUT:
            spent[0] += float(node.cost_s[c])
    for edge in network.edges:
        spent[edge.place[0] > 0] += float(edge.cost_s[choice[edge.source], choice[edge.target]])
    return spent[1], spent[0]
