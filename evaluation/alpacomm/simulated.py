"""A planned transfer of a case, on simulated network cards."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.alpacomm.cases import FLOAT32_BYTES, Case
from evaluation.transfers.dependent_flows import FlowTimes, run_flows
from evaluation.transfers.route_flows import route_flows
from meshwise.resharding.cross_mesh.cross_mesh_plan import CrossMeshPlan
from meshwise.resharding.cross_mesh.planned_route import route_of_plan
from meshwise.simulate.links import HostLinks


def simulated(case: Case, plan: CrossMeshPlan, links: Sequence[HostLinks]) -> FlowTimes:
    """Return when everything that moves begins and ends.

    Args:
        case: The case.
        plan: A plan of its tasks.
        links: Links of each host, by number.
    """
    source, destination, hosts = case.placements()
    route = route_of_plan(source, destination, hosts, plan)
    return run_flows(route_flows(route, hosts, FLOAT32_BYTES), links)
