"""All decisions about one layer on one mesh, what they cost, and what no plan is below.

Source: docs/decisions/0011; the bound is that of `assignment.bounds.messages`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwise.assignment.bounds.conditional import ConditionalBounds
from meshwise.assignment.problem import Problem
from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.boundary import Boundary, gathers_s, with_boundaries
from meshwise.inter.layer_cost.choice_bytes import (
    HeldBytes,
    held_bytes,
    repeated_bytes,
    resident_bytes,
    scratch_by_choice,
)
from meshwise.inter.layer_cost.footprint import Footprint, footprint
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.expand import expand
from meshwise.intra.network import LayoutNetwork, build_network
from meshwise.intra.options import ALPA, IntraOptions
from meshwise.intra.regions import Region
from meshwise.intra.ties import Ties, tied_problem
from meshwise.kernels.arrays import Floats
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNetwork:
    """All decisions about one layer on one mesh, and what they cost and hold.

    Two networks are equal only if they are one object.  There are no slots, since `held` is
    computed when it is first asked for.

    Attributes:
        piece: The layer.
        mesh: Where it runs.
        network: Its decisions; states of cuts are single choices.
        ties: Nodes that decide together.
        entering: Its side of the cut before it.
        leaving: Its side of the cut after it.
        arriving_s: For each state that enters, seconds of one micro-batch to put an activation
            together that another stage sends.
        returning_s: The same of a cotangent, for each state that leaves.
        again_s: Seconds of one micro-batch by choice of each class of nodes, for work that the
            backward pass repeats.
        problem: Seconds of a step.
    """

    piece: PieceGraph
    mesh: LogicalMesh
    network: LayoutNetwork
    ties: Ties
    entering: Boundary
    leaving: Boundary
    arriving_s: Floats
    returning_s: Floats
    again_s: tuple[Floats, ...]
    problem: Problem
    _decisions: dict[tuple[int, ...], GraphDecision] = field(
        default_factory=dict[tuple[int, ...], GraphDecision], init=False, repr=False, compare=False
    )
    _memory: dict[tuple[int, ...], Footprint] = field(
        default_factory=dict[tuple[int, ...], Footprint], init=False, repr=False, compare=False
    )

    def plan(self, choice: tuple[int, ...]) -> tuple[GraphDecision, Footprint]:
        """The plan of a choice for each class of nodes, and what it holds; made once."""
        decision = self.decision(choice)
        if choice not in self._memory:
            self._memory[choice] = footprint(self.piece, decision, self.mesh)
        return decision, self._memory[choice]

    def decision(self, choice: tuple[int, ...]) -> GraphDecision:
        """The plan of a choice for each class of nodes; made once."""
        if choice not in self._decisions:
            self._decisions[choice] = expand(self.network, self.ties.spread(choice))
        return self._decisions[choice]

    def knows(self, choice: tuple[int, ...]) -> bool:
        """Whether what the plan of a choice holds is known."""
        return choice in self._memory

    def keep(self, choice: tuple[int, ...], memory: Footprint) -> None:
        """Take what the plan of a choice holds, computed elsewhere."""
        self._memory[choice] = memory

    @cached_property
    def held(self) -> HeldBytes:
        """Bytes by choice: dear, and only prices of memory ask for it."""
        return held_bytes(self.piece, self.network, self.ties)

    @cached_property
    def scratch(self) -> tuple[Floats, ...]:
        """Bytes by choice that operators hold while they run: prices of memory ask for it too."""
        return scratch_by_choice(self.network, self.ties)


def layer_network(
    piece: PieceGraph,
    mesh: LogicalMesh,
    options: IntraOptions,
    parts: tuple[Region, ...] | None = None,
    evaluators: Evaluators | None = None,
) -> LayerNetwork:
    """The decisions about one layer on one mesh.

    Args:
        piece: The layer.
        mesh: The mesh.
        options: Of planning.
        parts: The regions of the layer's graph if they are known.
        evaluators: That know what was computed for other layers.

    Raises:
        InfeasibleError: an operator has no strategy on the mesh.
    """
    network, ties, entering, leaving = with_boundaries(
        piece, build_network(piece.graph, mesh, options, parts, evaluators)
    )
    rate = math.inf if options.objective == ALPA else mesh.device.memory_bytes_per_s
    again_s = tuple(num_bytes / rate for num_bytes in repeated_bytes(piece, network, ties))
    return LayerNetwork(
        piece=piece,
        mesh=mesh,
        network=network,
        ties=ties,
        entering=entering,
        leaving=leaving,
        arriving_s=gathers_s(entering, piece.entering, mesh),
        returning_s=gathers_s(leaving, piece.leaving, mesh),
        again_s=again_s,
        problem=_repeating(tied_problem(network, ties), again_s, piece.num_microbatches),
    )


def _repeating(problem: Problem, again_s: tuple[Floats, ...], num_microbatches: int) -> Problem:
    """A problem with the time of repeated work."""
    pairs = zip(problem.costs, again_s, strict=True)
    return replace(problem, costs=tuple(cost + num_microbatches * s for cost, s in pairs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBounds:
    """Lower bounds of all plans of a layer; equal only if they are one object.

    Attributes:
        loop_s: Seconds of all micro-batches, by (states that enter, states that leave).
        arriving_s: Of all micro-batches, as `LayerNetwork` has it for one; by state that enters.
        returning_s: The same by state that leaves.
        resident_bytes: Held all the time by one device.
    """

    loop_s: Floats
    arriving_s: Floats
    returning_s: Floats
    resident_bytes: float


def layer_bounds(layer: LayerNetwork) -> LayerBounds:
    """Bounds of time by messages, of bytes by what each decision holds at least."""
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
