"""Every collective that a lowering of a decision emits.

A reduction loop leaves a partial result, and what becomes of it is a change of layout like any
other.  An operator sends by itself only the edges of its halos, what goes round its ring, and rows
that go to their groups.

Source: docs/facts.md section 1 for the bytes; docs/invariants.md, I2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.device_kind import bucket_of
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.plan.counts.walk import Exchange, Reshard, transfers
from meshwise.plan.decision import GraphDecision
from meshwise.resharding.moves import FREE
from meshwise.resharding.within import tensor_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: `all-reduce`, `reduce-scatter`, `all-gather`, `all-to-all` or `permute`.
        axes: Names of the mesh axes of its groups.
        group_size: Devices in one group.
        num_bytes: B of docs/facts.md section 1: the tensor as its group sees it whole.
        count: How often it runs in a step.
        stage: Stage of the pipeline.
        where: Operator and source line that needs it, or whose result leaves as an output.
        sharers: Tensors whose collectives the compiler merges with it, so that they share
            latencies; 0 if it runs alone.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    num_bytes: int
    count: int
    stage: int = 0
    where: str = ""
    sharers: int = 0


def collectives(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> tuple[Collective, ...]:
    """Return all collectives in program order; groups of one device are left out.

    Args:
        graph: What runs.
        decision: The decision about it.
        mesh: Where it runs.

    Returns:
        One entry for each; `count` says how often it runs in a step.

    Raises:
        PlanError: the decision asks for a change of layout that does not exist.
    """
    return tuple(
        Collective(
            kind=kind,
            axes=tuple(mesh.axes[a].name for a in axes),
            group_size=group_size,
            num_bytes=num_bytes,
            count=made.times,
            where=made.where,
            sharers=sharers,
        )
        for made in transfers(graph, decision, mesh.sizes)
        for kind, axes, group_size, num_bytes, sharers in sent(made, mesh)
    )


class Sent(NamedTuple):
    """What devices send at once: kind, mesh axes and size of the group, bytes and sharers."""

    kind: str
    axes: tuple[int, ...]
    group_size: int
    num_bytes: int
    sharers: int


def sent(made: Reshard | Exchange, mesh: LogicalMesh) -> list[Sent]:
    """Return what a transfer sends on a mesh, in order; groups of one device are left out."""
    if isinstance(made, Exchange):
        return [Sent(made.kind, made.axes, made.group_size, made.num_bytes, 0)]
    tensor = made.tensor
    sharers = tensor.sharers if bucket_of(mesh.device, tensor.sharers) else 0
    return [
        Sent(step.kind, step.axes, step.group_size, step.num_bytes, sharers)
        for step in tensor_path(tensor, made.before, made.after, mesh)
        if step.kind not in FREE and step.group_size > 1
    ]


def collective_s(collective: Collective, mesh: LogicalMesh) -> float:
    """Return the predicted time of one run of a collective.

    Args:
        collective: The collective.
        mesh: The mesh whose axes it names.

    Returns:
        Seconds.
    """
    axes = tuple(mesh.names.index(name) for name in collective.axes)
    return collective_time_s(
        collective.kind, axes, collective.num_bytes, mesh, sharers=collective.sharers
    )


# Stage, kind, axes and size of the group -> how many run in a step, their bytes and seconds.
Sums: TypeAlias = dict[tuple[int, str, tuple[str, ...], int], tuple[int, int, float]]


def collective_sums(items: Sequence[Collective], meshes: Sequence[LogicalMesh]) -> Sums:
    """Return the collectives of a step, equal ones summed.

    Args:
        items: The collectives of a plan.
        meshes: For each stage its mesh.

    Returns:
        Sums in the order in which the collectives first run.
    """
    sums: Sums = {}
    for item in items:
        key = (item.stage, item.kind, item.axes, item.group_size)
        count, num_bytes, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = (
            count + item.count,
            num_bytes + item.count * item.num_bytes,
            seconds + item.count * collective_s(item, meshes[item.stage]),
        )
    return sums
