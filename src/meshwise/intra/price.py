"""Price of a finished decision: seconds of one step."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.intra.blocks.partition import BODIES, CLUSTER
from meshwise.intra.options import TIME
from meshwise.intra.regions import Region, regions
from meshwise.intra.shapes import BlockShape
from meshwise.intra.tables import Evaluator
from meshwise.plan.counts.contents import OtherOperators
from meshwise.plan.counts.walk import place, reshards
from meshwise.plan.decision import GraphDecision
from meshwise.plan.offload import host_transfer_s


def decision_of(region: Region, decision: GraphDecision) -> GraphDecision:
    """The part of a decision that speaks about one region."""
    for i, p in zip(region.path[::2], region.path[1::2], strict=True):
        decision = decision.operators[i].bodies[p]
    return decision


def _resharding_s(region: Region, decision: GraphDecision, evaluator: Evaluator) -> float:
    """Return the seconds that one run of a region spends in changes of layout."""
    total = 0.0
    for move in itertools.chain.from_iterable(reshards(region.graph, decision)):
        total += evaluator.reshard_s(move.tensor, move.before, move.after)
    return total


class _Compute:
    """Seconds of operators; equal blocks with equal strategies are priced once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.known: dict[object, float] = {}

    def region_s(self, region: Region, decision: GraphDecision) -> float:
        """Seconds that one run of a region spends in operators, their edges included."""
        return sum(seconds for _, seconds in self.blocks(region, decision))

    def blocks(
        self, region: Region, decision: GraphDecision
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        """Yield the operators of each block of a region, and the seconds of one run of them."""
        for n, block in enumerate(region.blocks.blocks):
            if block.kind == BODIES:
                continue
            shape, _, number = self.evaluator.shapes.of_block(region, n)
            key = (number, tuple(decision.operators[i].strategy for i in block.members))
            if key not in self.known:
                self.known[key] = self.block_s(shape, decision)
            yield block.members, self.known[key]

    def block_s(self, shape: BlockShape, decision: GraphDecision) -> float:
        evaluator = self.evaluator
        chosen = tuple(decision.operators[i].strategy for i in shape.block.members)
        if shape.block.kind == CLUSTER:
            walk = evaluator.account(shape, chosen)
            assert walk is not None
            return evaluator.fused_s(shape, walk) + evaluator.cluster_edges_s(shape, chosen)
        decided = decision.operators[shape.block.members[0]]
        operands = tuple(use.layout for use in decided.uses)
        return evaluator.alone_s(shape, chosen[0], (operands, decided.results))


def step_time_s(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    *,
    objective: str = TIME,
    parts: tuple[Region, ...] | None = None,
) -> float:
    """Seconds of one step of a decided graph, nothing overlapped.

    They are those of operators, of collectives, and of state that comes from hosts and goes back.

    Args:
        graph: The graph.
        decision: What was decided about it.
        mesh: Where it runs.
        objective: `time`, or `alpa` for communication only.
        parts: The regions of the graph if they are known.
    """
    evaluator = Evaluator(mesh, objective, frozenset())
    compute = _Compute(evaluator)
    total = 0.0
    for region in parts or regions(graph):
        part = decision_of(region, decision)
        once = compute.region_s(region, part) + _resharding_s(region, part, evaluator)
        total += region.trips * once
    return total + host_transfer_s(graph, decision, mesh)


def other_operators(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    *,
    parts: tuple[Region, ...] | None = None,
) -> tuple[OtherOperators, ...]:
    """Return what takes time in a step besides dense products and convolutions, dearest first.

    Args:
        graph: The graph.
        decision: What was decided about it.
        mesh: Where it runs.
        parts: The regions of the graph if they are known.
    """
    compute = _Compute(Evaluator(mesh, TIME, frozenset()))
    counts, seconds = Counter[str](), defaultdict[str, float](float)
    for region in parts or regions(graph):
        operators, tensors = region.graph.operators, region.graph.tensors

        def made_bytes(op: Operator, tensors: Sequence[Tensor] = tensors) -> int:
            return sum(tensors[t].num_bytes for t in op.outputs)

        for members, once_s in compute.blocks(region, decision_of(region, decision)):
            block = [operators[i] for i in members]
            if once_s and not any(op.heavy for op in block):
                where = place(max(block, key=made_bytes))
                counts[where] += region.trips
                seconds[where] += region.trips * once_s
    return tuple(
        OtherOperators(where=where, count=counts[where], seconds=seconds[where])
        for where in sorted(seconds, key=lambda name: (-seconds[name], name))
    )
