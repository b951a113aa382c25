"""Work of a decision: dense FLOP of one device, and what runs whole on every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.loops import NONE, Strategy
from meshwise.graph.sends import ring_share
from meshwise.plan.counts.walk import place, visits
from meshwise.plan.decision import GraphDecision


def strategy_parts(operator: Operator, strategy: Strategy, sizes: tuple[int, ...]) -> int:
    """Return the number of devices among which the loops of an operator are divided.

    Axes that no loop is mapped to, or along which partial sums pass, divide nothing.

    Args:
        operator: The operator.
        strategy: The loop of each mesh axis.
        sizes: The sizes of the mesh axes.
    """
    return math.prod(
        sizes[axis]
        for axis, choice in enumerate(strategy)
        if 0 <= choice < len(operator.rule.loops)
    )


def device_share(operator: Operator, strategy: Strategy, sizes: tuple[int, ...]) -> float:
    """Return which share of the FLOP of an operator one device does.

    Args:
        operator: The operator.
        strategy: The strategy.
        sizes: Sizes of the mesh axes.
    """
    parts = strategy_parts(operator, strategy, sizes)
    return ring_share(operator.rule, strategy, sizes) / parts


def all_flop(graph: Graph) -> float:
    """FLOP of dense products and convolutions on all devices, of all passes, trips included."""
    own = (operator.flop for operator in graph.operators if operator.heavy)
    inner = (
        part.trips * all_flop(body)
        for operator in graph.operators
        if operator.structure is not None
        for part, body in zip(operator.structure.parts, operator.bodies, strict=True)
    )
    return math.fsum((*own, *inner))


def device_flop(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> float:
    """FLOP of dense products and convolutions of one device in a step, trip counts included."""
    return math.fsum(
        visit.times
        * visit.operator.flop
        * device_share(visit.operator, visit.decision.strategy, mesh.sizes)
        for visit in visits(graph, decision)
        if visit.operator.heavy
    )


def flop_share(graph: Graph, decision: GraphDecision, which: Callable[[Operator], bool]) -> float:
    """Return the share of some operators in the FLOP of a step, trip counts included; 0 to 1.

    Args:
        graph: The step.
        decision: Its decision; what all devices do together is counted, however they share it.
        which: Tells whether an operator is one of these.
    """
    pairs = [(which(v.operator), v.times * v.operator.flop) for v in visits(graph, decision)]
    total = math.fsum(flop for _, flop in pairs)
    return math.fsum(flop for found, flop in pairs if found) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """What every device of the mesh computes whole, so that nothing is gained by the mesh.

    Attributes:
        flop_share: Share of all FLOP of the program, trip counts included; 0 to 1.
        bytes_share: Share of all bytes that operators read and write; 0 to 1.
        largest: Operators with the most replicated bytes, as (place, bytes), largest first.
    """

    flop_share: float
    bytes_share: float
    largest: tuple[tuple[str, int], ...] = ()


NOTHING_REPLICATED = Replicated(flop_share=0.0, bytes_share=0.0)
NUM_LARGEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedWork:
    """Sums of which `Replicated` gives the shares, for one or several programs.

    Attributes:
        whole_flop: FLOP of operators that run replicated.
        all_flop: FLOP of all operators.
        whole_bytes: Bytes that operators which run replicated read and write.
        all_bytes: Bytes that all operators read and write.
        by_place: Pairs (place, bytes) of the operators that run replicated.
    """

    whole_flop: float
    all_flop: float
    whole_bytes: int
    all_bytes: int
    by_place: tuple[tuple[str, int], ...]

    def times(self, count: int) -> ReplicatedWork:
        """Return the sums of `count` runs."""
        return ReplicatedWork(
            whole_flop=self.whole_flop * count,
            all_flop=self.all_flop * count,
            whole_bytes=self.whole_bytes * count,
            all_bytes=self.all_bytes * count,
            by_place=tuple((where, size * count) for where, size in self.by_place),
        )

    @staticmethod
    def together(parts: Sequence[ReplicatedWork]) -> ReplicatedWork:
        """Return the sums of several programs."""
        places: dict[str, int] = {}
        for part in parts:
            for where, size in part.by_place:
                places[where] = places.get(where, 0) + size
        return ReplicatedWork(
            whole_flop=math.fsum(part.whole_flop for part in parts),
            all_flop=math.fsum(part.all_flop for part in parts),
            whole_bytes=sum(part.whole_bytes for part in parts),
            all_bytes=sum(part.all_bytes for part in parts),
            by_place=tuple(places.items()),
        )

    def shares(self) -> Replicated:
        """Return which shares of the work run replicated, and the largest operators that do."""
        largest = sorted(self.by_place, key=lambda item: (-item[1], item[0]))
        return Replicated(
            flop_share=self.whole_flop / max(self.all_flop, 1.0),
            bytes_share=self.whole_bytes / max(self.all_bytes, 1),
            largest=tuple(largest[:NUM_LARGEST]),
        )


def replicated_work(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> ReplicatedWork:
    """Return how much of the work runs replicated.

    An operator runs replicated if its strategy neither splits a loop nor lets a partial sum pass
    along any axis.  Operators with bodies count by these, generated results not at all.
    """
    flop = {False: 0.0, True: 0.0}
    num_bytes = {False: 0, True: 0}
    by_place: dict[str, int] = {}
    for visit in visits(graph, decision):
        operator, tensors = visit.operator, visit.graph.tensors
        if operator.bodies or all(tensors[i].generated for i in operator.outputs):
            continue
        whole = mesh.num_devices > 1 and all(
            choice == NONE or size == 1
            for choice, size in zip(visit.decision.strategy, mesh.sizes, strict=True)
        )
        touched = sum(tensors[i].num_bytes for i in (*operator.inputs, *operator.outputs))
        flop[whole] += visit.times * operator.flop
        num_bytes[whole] += visit.times * touched
        if whole:
            where = place(operator)
            by_place[where] = by_place.get(where, 0) + visit.times * touched
    return ReplicatedWork(
        whole_flop=flop[True],
        all_flop=flop[True] + flop[False],
        whole_bytes=num_bytes[True],
        all_bytes=num_bytes[True] + num_bytes[False],
        by_place=tuple(by_place.items()),
    )
