"""What programs of a plan do in a step: collectives, dense operators, FLOP, replicated work.

A stage of a pipeline runs several programs, some of them once for every micro-batch; a step on one
mesh is one program that runs once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.plan.counts.collectives import Collective, collectives
from meshwise.plan.counts.contents import DenseOperator, dense_operators
from meshwise.plan.counts.flop import ReplicatedWork, device_flop, replicated_work
from meshwise.plan.counts.shares import communication
from meshwise.plan.decision import GraphDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedProgram:
    """A program with its decision.

    Attributes:
        graph: What it computes.
        decision: How.
        times: How often it runs in a step.
    """

    graph: Graph
    decision: GraphDecision
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What programs on one mesh do in a step.

    Attributes:
        collectives: In program order; `stage` is 0.
        dense: Dense products and convolutions, equal ones merged.
        device_flop: Dense FLOP of one device.
        replicated: What runs whole on every device, beside all that runs.
    """

    collectives: tuple[Collective, ...]
    dense: tuple[DenseOperator, ...]
    device_flop: float
    replicated: ReplicatedWork


def work_of(programs: Iterable[DecidedProgram], mesh: LogicalMesh) -> Work:
    """Return what programs do in a step.

    Args:
        programs: The programs; one that runs in no micro-batch (`times` of 0) is left out.
        mesh: Where they run.
    """
    return work_together([_work(program, mesh) for program in programs if program.times])


def _work(program: DecidedProgram, mesh: LogicalMesh) -> Work:
    graph, decision, times = program.graph, program.decision, program.times
    moves = communication(graph, decision, mesh)
    return Work(
        collectives=tuple(
            replace(item, count=item.count * times) for item in collectives(graph, decision, mesh)
        ),
        dense=tuple(_times(item, times) for item in dense_operators(graph, decision, mesh, moves)),
        device_flop=device_flop(graph, decision, mesh) * times,
        replicated=replicated_work(graph, decision, mesh).times(times),
    )


def work_together(parts: Sequence[Work]) -> Work:
    """Return the sum of several pieces of work; dense operators that run in one way are merged."""
    merged: dict[object, DenseOperator] = {}
    for part in parts:
        for item in part.dense:
            key = (item.where, item.operands, item.results)
            merged[key] = _both(merged[key], item) if key in merged else item
    return Work(
        collectives=tuple(item for part in parts for item in part.collectives),
        dense=tuple(merged.values()),
        device_flop=math.fsum(part.device_flop for part in parts),
        replicated=ReplicatedWork.together([part.replicated for part in parts]),
    )


def _times(item: DenseOperator, times: int) -> DenseOperator:
    if times == 1:
        return item
    return replace(
        item,
        count=item.count * times,
        device_flop=item.device_flop * times,
        compute_s=item.compute_s * times,
        memory_s=item.memory_s * times,
        communication=tuple((kind, seconds * times) for kind, seconds in item.communication),
    )


def _both(one: DenseOperator, other: DenseOperator) -> DenseOperator:
    seconds = dict(one.communication)
    for kind, value in other.communication:
        seconds[kind] = seconds.get(kind, 0.0) + value
    return replace(
        one,
        count=one.count + other.count,
        device_flop=one.device_flop + other.device_flop,
        compute_s=one.compute_s + other.compute_s,
        memory_s=one.memory_s + other.memory_s,
        communication=tuple(sorted(seconds.items())),
    )
