"""The nine cases and the one-to-many series, with every strategy and algorithm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.alpacomm.cases import NIC_BYTES_PER_S, Case, random_case
from evaluation.alpacomm.simulated import simulated
from meshwise.cluster.spec import ClusterSpec
from meshwise.resharding.cross_mesh.cross_mesh_plan import (
    ALGORITHMS,
    BALANCED,
    BEST,
    NAIVE,
    CrossMeshPlan,
    cross_mesh_plan,
)
from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    GATHERED,
    GLOBAL_GATHERED,
    STRATEGIES,
)
from meshwise.simulate.flows import host_links
from meshwise.simulate.links import HostLinks

HOST = "p3.8xlarge"
NUM_RANDOM = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case.

    Attributes:
        case: Which.
        num_boxes: Unit tasks.
        bound_s: Bytes through the busiest network card.
        planned_s: For each strategy with the best senders and order.
        simulated_s: The same plans on simulated network cards and links.
        gathered_s: Simulated seconds of the better all-gather, with senders and order by name:
            as the boxes come, or by load balance only.
        by_algorithm_s: Planned seconds of a broadcast with each algorithm.
    """

    case: Case
    num_boxes: int
    bound_s: float
    planned_s: Mapping[str, float]
    simulated_s: Mapping[str, float]
    gathered_s: Mapping[str, float]
    by_algorithm_s: Mapping[str, float]

    def speedup(self, algorithm: str) -> float:
        """Of the best broadcast over the all-gather with such an order."""
        return self.gathered_s[algorithm] / self.simulated_s[BROADCAST]


def run_case(case: Case) -> CaseResult:
    """Plan and simulate one case."""
    tasks = case.tasks()
    hosts = _hosts(case)
    plans = {name: cross_mesh_plan(tasks, NIC_BYTES_PER_S, name) for name in STRATEGIES}
    return CaseResult(
        case=case,
        num_boxes=len(tasks),
        bound_s=plans[BROADCAST].bound_s,
        planned_s={name: plan.makespan_s for name, plan in plans.items()},
        simulated_s={name: simulated(case, plan, hosts).makespan_s for name, plan in plans.items()},
        gathered_s={
            name: min(
                simulated(
                    case, cross_mesh_plan(tasks, NIC_BYTES_PER_S, way, name), hosts
                ).makespan_s
                for way in (GATHERED, GLOBAL_GATHERED)
            )
            for name in (NAIVE, BALANCED)
        },
        by_algorithm_s={
            name: cross_mesh_plan(tasks, NIC_BYTES_PER_S, BROADCAST, name).makespan_s
            for name in ALGORITHMS
        },
    )


def _hosts(case: Case) -> list[HostLinks]:
    """Hosts as published: ten gigabits a second between them, links as in the catalog."""
    (links,) = host_links(ClusterSpec.virtual(f"1x {HOST}"))
    published = HostLinks(nic_bytes_per_s=NIC_BYTES_PER_S, link_bytes_per_s=links.link_bytes_per_s)
    return [published] * (case.source[0] + case.destination[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResult:
    """Random cases with the best broadcast.

    Attributes:
        ratios: Makespan over the bound, ascending.
        winners: How often each algorithm was the first to be best.
        worse: For each single algorithm its mean makespan over the best one.
    """

    ratios: tuple[float, ...]
    winners: Mapping[str, int]
    worse: Mapping[str, float]


def run_random(count: int = NUM_RANDOM) -> RandomResult:
    """Plan random cases."""
    best: list[CrossMeshPlan] = []
    others: dict[str, list[float]] = {name: [] for name in ALGORITHMS if name != BEST}
    for number in range(count):
        tasks = random_case(number).tasks()
        plan = cross_mesh_plan(tasks, NIC_BYTES_PER_S)
        best.append(plan)
        for name, ratios in others.items():
            other = cross_mesh_plan(tasks, NIC_BYTES_PER_S, BROADCAST, name)
            ratios.append(other.makespan_s / plan.makespan_s)
    return RandomResult(
        ratios=tuple(sorted(plan.makespan_s / plan.bound_s for plan in best)),
        winners=Counter(plan.algorithm for plan in best),
        worse={name: _mean(ratios) for name, ratios in others.items()},
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
