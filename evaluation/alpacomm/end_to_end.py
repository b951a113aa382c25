"""A planned pipeline with other strategies, schedules and overlap, simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from evaluation.alpacomm.clocks import TaskCosts
from evaluation.alpacomm.delayed_weights import delay_weights
from evaluation.alpacomm.stages import PlannedStages, Stage
from evaluation.transfers.route_flows import route_flows
from evaluation.transfers.ways import SIGNAL
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.layout import Layout
from meshwise.resharding.between import gather_s
from meshwise.resharding.cross_mesh.host_tasks import HostedMesh
from meshwise.resharding.cross_mesh.planned_route import planned_route
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.cross_mesh.strategies import BROADCAST, GATHERED, SEND_RECV
from meshwise.resharding.tiles import boxes
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.registry import make_schedule
from meshwise.simulate.chunks import stage_cost
from meshwise.simulate.flows import host_links
from meshwise.simulate.links import Flow
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How stages send, and when.

    Attributes:
        strategy: One of `transfers.strategies`, or a signal of one byte.
        schedule: Name in `schedules.registry`.
        overlaps: Whether meshes compute while transfers run.
        delays: Whether gradients of weights are delayed.
    """

    strategy: str
    schedule: str = ONE_F_ONE_B.name
    overlaps: bool = False
    delays: bool = False


_EAGER = EAGER.name
ALL_GATHER, ALL, BOUND = "all-gather", "broadcast, overlap, eager-1F1B", "one byte"
DELAYED = f"{ALL}, delayed weights"
PLAIN, OVERLAPPED = "broadcast", "broadcast, overlap"
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "send/recv": Way(strategy=SEND_RECV),
        ALL_GATHER: Way(strategy=GATHERED),
        PLAIN: Way(strategy=BROADCAST),
        OVERLAPPED: Way(strategy=BROADCAST, overlaps=True),
        ALL: Way(strategy=BROADCAST, overlaps=True, schedule=_EAGER),
        DELAYED: Way(strategy=BROADCAST, overlaps=True, schedule=_EAGER, delays=True),
        BOUND: Way(strategy=SIGNAL, overlaps=True, schedule=_EAGER),
    }
)


def run_way(planned: PlannedStages, way: Way) -> Timeline:
    """One step of a pipeline.

    Args:
        planned: Its stages.
        way: How they send.

    Raises:
        ValueError: two stages share a host.
    """
    cluster = ClusterSpec.virtual(planned.cluster)
    stages = planned.stages
    chunks = [replace(s.chunk, forward_gather_s=0.0, backward_gather_s=0.0) for s in stages]
    boundaries: list[StageBoundary] = []
    for k, (left, right) in enumerate(pairwise(stages)):
        num_bytes = left.send_bytes
        ends = (left, left.leaves), (right, right.enters)
        there = _flows(planned, cluster, way.strategy, ends, num_bytes)
        back = _flows(planned, cluster, way.strategy, ends[::-1], num_bytes)
        boundaries.append(
            StageBoundary(
                source=k,
                destination=k + 1,
                forward=there,
                backward=back,
            )
        )
        if way.strategy == GATHERED:
            ahead = gather_s(num_bytes, right.enters, _mesh(cluster, right))
            behind = gather_s(num_bytes, left.leaves, _mesh(cluster, left))
            chunks[k + 1] = replace(chunks[k + 1], forward_gather_s=ahead)
            chunks[k] = replace(chunks[k], backward_gather_s=behind)
    costs = [stage_cost(chunk) for chunk in chunks]
    schedule = make_schedule(
        way.schedule, num_stages=len(stages), num_microbatches=planned.num_microbatches
    )
    if way.delays:
        rate = cluster.host_at(0).nics_bytes_per_s
        schedule = delay_weights(schedule, _task_costs(costs, boundaries, rate))
    pipeline = PricedPipeline(costs, boundaries, host_links(cluster), way.overlaps)
    return pipeline.simulate(schedule)


def _flows(
    planned: PlannedStages,
    cluster: ClusterSpec,
    strategy: str,
    ends: Sequence[tuple[Stage, Layout]],
    num_bytes: int,
) -> tuple[Flow, ...]:
    """Return what one micro-batch moves between hosts, by its best plan.

    What passes from one host to another is one flow.  All begin at once and share the network
    cards; what stays inside a host is left out.

    Args:
        planned: The pipeline.
        cluster: Where it runs.
        strategy: One of `transfers.strategies`, or a signal.
        ends: Sender and receiver with their layouts.
        num_bytes: Of one micro-batch.
    """
    (source, before), (destination, after) = ends
    nic = cluster.host_at(source.first_host).nic
    if strategy == SIGNAL:
        return (Flow(source.first_host, destination.first_host, 1.0, nic.latency_s),)
    # The tensors that cross, as one: rows, and the bytes of a row.
    shape = (planned.rows, -(-num_bytes // planned.rows))
    meshes = _hosted(source), _hosted(destination)
    sides = boxes(shape, before, meshes[0].sizes), boxes(shape, after, meshes[1].sizes)
    there = dict(enumerate(sides[0])), dict(enumerate(sides[1], len(sides[0])))
    sending = Sending(bytes_per_s=cluster.host_at(0).nics_bytes_per_s, strategy=strategy)
    hosts = (*meshes[0].hosts, *meshes[1].hosts)
    moved: dict[tuple[int, int], float] = {}
    for flow, _ in route_flows(planned_route(*there, hosts, 1, sending), hosts, 1):
        if flow.source != flow.destination:
            at = flow.source, flow.destination
            moved[at] = moved.get(at, 0.0) + flow.num_bytes
    return tuple(Flow(*at, count, nic.latency_s) for at, count in sorted(moved.items()))


def _hosted(stage: Stage) -> HostedMesh:
    num_hosts, devices = stage.submesh
    hosts = range(stage.first_host, stage.first_host + num_hosts)
    return HostedMesh(sizes=stage.mesh, hosts=tuple(h for h in hosts for _ in range(devices)))


def _mesh(cluster: ClusterSpec, stage: Stage) -> LogicalMesh:
    return cluster.submesh(stage.first_host, stage.submesh[0]).kind.mesh(stage.mesh)


def _task_costs(
    costs: Sequence[StageCost], boundaries: Sequence[StageBoundary], rate: float
) -> TaskCosts:
    """Return the seconds of the slowest task of each kind, and of the longest transfer alone."""
    longest_s = 0.0
    for flows in (f for b in boundaries for f in (b.forward, b.backward)):
        ports: dict[tuple[str, int], float] = {}
        for flow in flows:
            for port in (("out", flow.source), ("in", flow.destination)):
                ports[port] = ports.get(port, 0.0) + flow.num_bytes
        longest_s = max(longest_s, max(ports.values(), default=0.0) / rate)
    return TaskCosts(
        forward=max(cost.forward_s for cost in costs),
        backward=max(cost.activation_gradient_s or 0.0 for cost in costs),
        weight=max(cost.weight_gradient_s or 0.0 for cost in costs),
        transfer=longest_s,
    )
